use super::{ChatTemplate, Conversation, Message, rewrite::rewrite};
use crate::{Error, Limits, SpecialTokens};
use proptest::prelude::*;

fn render(source: &str) -> crate::Result<String> {
    let messages = [Message::new("user", "Hi")];
    let template = ChatTemplate::new(source, &SpecialTokens::new(), &Limits::default())?;
    template.render(&Conversation { messages: &messages, add_generation_prompt: true, ..Conversation::default() })
}

/// Runs on a small stack, so that too deep a recursion shows.
fn fails(source: &str) {
    let source = source.to_owned();
    let short: String = source.chars().take(200).collect();
    let result = std::thread::spawn(move || render(&source)).join().expect("no panic");
    assert!(matches!(result, Err(Error::Template { .. } | Error::TooMany { .. })), "{short}: {result:?}");
}

#[test]
fn endless_templates_run_out_of_steps() {
    fails("{% for i in range(10000) %}{% for j in range(10000) %}{{ i }}{% endfor %}{% endfor %}");
    fails("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}");
    fails("{% include 'chat' %}");
}

#[test]
fn texts_that_double_are_refused() {
    fails(&format!("{{% set x = 'a' %}}{}", "{% set x = x ~ x %}".repeat(50)));
    fails(&format!("{{% set x = 'a' %}}{}", "{% set x = x + x %}".repeat(50)));
    fails(&format!("{{% set x = 'a' %}}{}", "{% set x %}{{ x }}{{ x }}{% endset %}".repeat(50)));
    fails(&format!("{{% set x = 'a' %}}{}", "{% set x = x.replace('a', 'aa') %}".repeat(50)));
    fails(&format!("{{% set x = 'a' %}}{}", "{% set x = x | replace('a', 'aa') %}".repeat(50)));
    fails(&format!("{{% set x = 'a' %}}{}", "{% set x = [x, x] | join %}".repeat(50)));
    fails(&format!("{{% set x = 'a' %}}{}", "{% set x = [x, x] | string %}".repeat(50)));
    fails(&format!("{{% set x = 'a' %}}{}", "{% set x = ''.join([x, x]) %}".repeat(50)));
    fails(&format!("{{% set x = ['a'] %}}{}", "{% set x = x + x %}".repeat(50)));
    fails(&format!("{{% set x = 'a' %}}{}{{{{ x }}}}", "{% set x = [x, x] %}".repeat(50)));
    fails(&format!("{{% set x = 'a' %}}{}{{{{ x | tojson }}}}", "{% set x = {'a': x, 'b': x} %}".repeat(50)));
    fails("{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f('a') }}");
    fails("{{ 'a' * 100000000 }}");
    fails("{{ 'a' | indent(1000000000, true) }}");
    fails("{{ 'a' | indent(width=1000000000, first=true) }}");
    fails("{{ '{:1000000000}'.format(1) }}");
    fails("{{ '%1000000000d' | format(1) }}");
    fails("{{ ['a'] | map('__indent', 1000000000) | list }}");
}

#[test]
fn long_plain_text_in_a_loop_is_counted() {
    let text = "abcdefgh".repeat(10_000);
    fails(&format!("{{% set x %}}{{% for i in range(100000) %}}{text}{{% endfor %}}{{% endset %}}"));
    fails(&format!("{{% for i in range(100000) %}}{text}{{% endfor %}}"));
}

#[test]
fn what_the_engine_panics_on_is_refused() {
    fails("{{ ''[::-1] }}");
    fails("{{ [][::-1] | list }}");
    fails("{% for m in ()[::-1] %}{% endfor %}");
}

#[test]
fn long_plain_text_may_begin_with_a_brace() {
    let text = format!("\n  {{\"name\": \"{}\"}}}}", "a b ".repeat(100));
    assert_eq!(render(&format!("{{% if true %}}{text}{{% endif %}}")).unwrap(), text.trim_start_matches('\n'));
    let text = format!("{{ {}", "{".repeat(300));
    assert!(render(&format!("{{% raw %}}{text}{{% endraw %}}")).is_ok());
}

#[test]
fn lists_inside_lists_without_end_are_refused() {
    fails("{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}");
    fails("{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = {'a': ns.x} %}{% endfor %}");
    fails("{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = (ns.x, 1) %}{% endfor %}");
    fails("{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = namespace(x=ns.x) %}{% endfor %}");
    fails("{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = dict(x=ns.x) %}{% endfor %}");
    fails(&format!("{{{{ {}1{} }}}}", "[".repeat(10_000), "]".repeat(10_000)));
    fails(&format!("{}{}", "{% if 1 %}".repeat(10_000), "{% endif %}".repeat(10_000)));
    for (start, link) in
        [("1", "+1"), ("", "-"), ("", "not "), ("x", ".a"), ("x", "|string"), ("1", " if 1 else 1"), ("x", "[0]")]
    {
        // A chain is as deep as it is long.
        fails(&format!("{{{{ {start}{} }}}}", link.repeat(100_000)));
        fails(&format!("{{{{ {start}{}1 }}}}", link.repeat(100_000)));
    }
    fails(&format!("{{% if x %}}{}{{% endif %}}", "{% elif x %}".repeat(50_000)));
}

#[test]
fn the_longest_chains_fit_on_a_small_stack() {
    for (start, link) in [("1", "+1"), ("", "-"), ("", "not "), ("messages", "|list"), ("1", " if 1 else 1")] {
        let count = super::rewrite::LONGEST_CHAIN / 2 - 8;
        let source = format!("{{{{ {start}{}1 }}}}", link.repeat(count));
        let source = if link == "|list" { source.replace("1 }}", " }}") } else { source };
        let source = if start == "1" { source.replace("11 }}", "1 }}").replace("else 11", "else 1") } else { source };
        std::thread::spawn(move || render(&source)).join().expect("no panic").expect("within the limits");
    }
}

#[test]
fn a_long_template_is_refused() {
    assert!(matches!(render(&" ".repeat(2 << 20)), Err(Error::TooMany { .. })));
}

#[test]
fn what_the_template_says_is_told() {
    let told = render("{{ raise_exception('no tools') }}").unwrap_err().to_string();
    assert_eq!(told, "the chat template refuses the conversation: no tools");
    let told = render("a\n{{ 1 + }}").unwrap_err().to_string();
    assert!(told.starts_with("the chat template, line 2: "), "{told}");
    let told = render("a\n{{ x.y.z }}").unwrap_err().to_string();
    assert!(told.starts_with("the chat template, line 2: "), "{told}");
}

#[test]
fn without_a_clock_there_is_no_date() {
    assert_eq!(render("{{ strftime_now is defined }}").unwrap(), "False");
    assert_eq!(super::date::format(1_709_164_800, "%F %A %-d %j %%"), "2024-02-29 Thursday 29 060 %");
    assert_eq!(super::date::format(-1, "%d %b %Y %H:%M:%S %I%p %Q"), "31 Dec 1969 23:59:59 11PM %Q");
    assert_eq!(super::date::format(i64::MAX, "%Y"), "9999");
    assert_eq!(super::date::format(i64::MIN, "%Y"), "1");
}

#[test]
fn a_tag_is_rewritten_without_changing_what_it_means() {
    for (source, expected) in [
        ("{{ a ~ b.c[0] | d(e) ~ 'f' }}", "{{ a |__written ~ b.c[0] |__walked | d(e) |__written ~ 'f' |__written }}"),
        ("{%- for (a, b) in c -%}", "{%- for (a, b) in c |__walked -%}"),
        ("{% set x.y = [1] %}", "{% set x.y = [1] |__walked %}"),
        ("{%- generation +%}x{% endgeneration %}", "{%- with +%}x{% endwith %}"),
        ("{# a ~ b #}{% raw %}{{ a ~ b }}{% endraw %}", "{# a ~ b #}{% raw %}{{ a ~ b }}{% endraw %}"),
        ("{{ {'a': {}} }}", "{{ {'a': {}|__walked } |__walked }}"),
        ("{{ '}} ~ ' }}", "{{ '}} ~ ' }}"),
        ("{{- -1 -}}", "{{- -1 -}}"),
    ] {
        assert_eq!(rewrite(source).unwrap().replace("  ", " "), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn no_text_makes_a_template_panic(source in any::<String>()) {
        let _ = render(&source);
    }

    #[test]
    fn no_tags_make_a_template_panic(
        parts in prop::collection::vec(prop::sample::select(vec![
            "{{", "}}", "{%", "%}", "{#", "#}", "{%-", "-%}", " for ", " x ", " in ", "messages", " if ", " set ", "=", "~",
            "+", "*", "(", ")", "[", "]", "{", "}", "'", "\"", "\\", "|", ".", ",", ":", " endif ", " endfor ", " raw ",
            " endraw ", " macro ", "tojson", "1", "9999999999", "-", " is ", " not ", "é", "\n", "generation", "namespace",
            "range", "join", "split", " else ",
        ]), 0..24),
    ) {
        let _ = render(&parts.concat());
    }
}
