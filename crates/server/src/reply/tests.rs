use super::*;
use crate::tools::{CallFormat, Function};
use serde_json::{Value, json};

fn functions() -> Vec<Function> {
    let weather = json!({
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "integer"}, "tags": {"type": "array"}},
        },
    });
    vec![serde_json::from_value(weather).unwrap(), serde_json::from_value(json!({"name": "now"})).unwrap()]
}

fn tools(format: CallFormat) -> Option<Arc<Tools>> {
    Some(Arc::new(Tools::for_tests(format, functions())))
}

const THINK: Option<Thoughts> = Some(THOUGHTS[0]);

/// Reads a text in pieces of random lengths, and as a whole, and returns the parts of the whole.
#[track_caller]
fn check(reader: &ReplyReader, text: &str) -> Vec<Part> {
    let read = |next: &mut dyn FnMut() -> usize| {
        let (mut reader, mut parts, mut rest) = (reader.clone(), Vec::new(), text);
        while !rest.is_empty() {
            let mut end = next().min(rest.len());
            while !rest.is_char_boundary(end) {
                end += 1;
            }
            reader.push(&rest[..end], &mut parts);
            rest = &rest[end..];
        }
        reader.finish(&mut parts);
        parts
    };
    let whole = read(&mut || text.len());
    let mut state = 88_172_645_463_325_252_u64;
    for most in [1, 2, 3, 7, 40] {
        for _ in 0..20 {
            let pieces = read(&mut || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                usize::try_from(state % most).unwrap() + 1
            });
            assert_eq!(pieces, whole, "in pieces of up to {most}: {text:?}");
        }
    }
    whole
}

fn content(text: &str) -> Part {
    Part::Content(text.to_owned())
}

fn thought(text: &str) -> Part {
    Part::Reasoning(text.to_owned())
}

fn call(name: &str, arguments: &str) -> Part {
    Part::Call(Call { name: name.to_owned(), arguments: arguments.to_owned() })
}

#[test]
fn calls_are_read_in_the_format_of_every_family() {
    let weather = |arguments: &str| call("weather", arguments);
    let rome = weather(r#"{"place":"Rome"}"#);
    let cases: &[(CallFormat, &str, Vec<Part>)] = &[
        (
            CallFormat::Hermes,
            "Let me see.\n\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"place\": \"Rome\"}}\n</tool_call>",
            vec![content("Let me see."), rome.clone()],
        ),
        (
            CallFormat::Hermes,
            "<tool_call>{\"name\": \"weather\", \"arguments\": {\"place\": \"</tool_call> \\\"}\"}}</tool_call>\n\
             <tool_call>{\"arguments\": {}, \"name\": \"now\"}</tool_call>\n",
            vec![weather(r#"{"place":"</tool_call> \"}"}"#), call("now", "{}")],
        ),
        // The end of the text closes the last call.
        (CallFormat::Hermes, "<tool_call>\n{\"name\": \"now\"}\n</tool", vec![call("now", "{}")]),
        (
            CallFormat::Parameters,
            "<tool_call>\n<function=weather>\n<parameter=place>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n\
             <parameter=tags>\n[\"a\"]\n</parameter>\n</function>\n</tool_call>",
            vec![weather(r#"{"place":"Rome","days":3,"tags":["a"]}"#)],
        ),
        (
            CallFormat::Parameters,
            "<tool_call>\n<function=weather>\n<parameter=place>\n 7\n<b></parameter></b>\n</function> </x>\n</parameter>\n\
             </function>\n</tool_call> then",
            vec![weather(r#"{"place":" 7\n<b></parameter></b>\n</function> </x>"}"#), content("then")],
        ),
        (CallFormat::Parameters, "<tool_call>\n<function=now>\n</function>\n</tool_call>", vec![call("now", "{}")]),
        (CallFormat::Llama, "\n{\"name\": \"weather\", \"parameters\": {\"place\": \"Rome\"}}", vec![rome.clone()]),
        (
            CallFormat::Llama,
            "{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"weather\", \"parameters\": {\"place\": \"Rome\"}}",
            vec![call("now", "{}"), rome.clone()],
        ),
        (
            CallFormat::MistralList,
            "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"place\": \"Rome\"}}, {\"name\": \"now\", \"arguments\": {}}]",
            vec![rome.clone(), call("now", "{}")],
        ),
        (
            CallFormat::MistralArguments,
            "[TOOL_CALLS]weather[ARGS]{\"place\": \"Rome\"}[TOOL_CALLS]now[CALL_ID]123456789[ARGS]{}",
            vec![rome.clone(), call("now", "{}")],
        ),
        (
            CallFormat::Gemma,
            "I look.<|tool_call>call:weather{place:<|\"|>Ro\"m{e<|\"|>,days:3,tags:[<|\"|>a<|\"|>,{k:true}]}<tool_call|>",
            vec![content("I look."), weather(r#"{"place":"Ro\"m{e","days":3,"tags":["a",{"k":true}]}"#)],
        ),
        (CallFormat::Gemma, "<|tool_call>call:weather{\"place\": \"Rome\"}", vec![rome]),
    ];
    for (format, text, expected) in cases {
        assert_eq!(&check(&ReplyReader::new(None, tools(*format), false), text), expected, "{format:?}");
        // Thoughts come before.
        let thinking = format!("<think>\nHm, <tool_call>\n</think>\n\n{text}");
        let found = check(&ReplyReader::new(THINK, tools(*format), false), &thinking);
        assert_eq!(found.split_first(), Some((&thought("Hm, <tool_call>"), expected.as_slice())), "{format:?}");
    }
}

#[test]
fn what_only_looks_like_a_call_stays_content() {
    let texts = [
        (CallFormat::Hermes, "<tool_call> and nothing"),
        (CallFormat::Hermes, "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>"),
        (CallFormat::Hermes, "<tool_call>{\"name\": \"now\", \"arguments\": [1]}</tool_call>"),
        (CallFormat::Hermes, "<tool_call>{\"name\": \"now\", \"arguments\": {</tool_call>"),
        (CallFormat::Hermes, " a < b <tool <tool_cal <tool_call"),
        (CallFormat::Hermes, "Grüße <tool_call>{\"name\" \u{1f600}} \n"),
        (CallFormat::Parameters, "<tool_call>\n<function=unknown>\n</function>\n</tool_call>"),
        (CallFormat::Parameters, "<tool_call>\n<function=weather>\n<parameter=place>\nRome"),
        (CallFormat::Llama, "{\"name\": \"unknown\", \"parameters\": {}}"),
        (CallFormat::Llama, "{\"a\": 1} is JSON"),
        (CallFormat::Llama, "See {\"name\": \"now\", \"parameters\": {}}"),
        (CallFormat::MistralList, "[TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {}}, 5]"),
        (CallFormat::MistralList, "[TOOL_CALLS] []"),
        (CallFormat::MistralArguments, "[TOOL_CALLS]now[ARGS][]"),
        (CallFormat::Gemma, "<|tool_call>call:now{a:}<tool_call|>"),
        (CallFormat::Gemma, "<|tool_call>call:now[]<tool_call|>"),
    ];
    for (format, text) in texts {
        assert_eq!(check(&ReplyReader::new(None, tools(format), false), text), [content(text)], "{format:?}");
    }
    // What comes after it is read again.
    let reader = ReplyReader::new(None, tools(CallFormat::Hermes), false);
    let found = check(&reader, "<tool_call>no <tool_call>{\"name\": \"now\"}</tool_call>");
    assert_eq!(found, [content("<tool_call>no"), call("now", "{}")]);
}

#[test]
fn thoughts_are_told_from_content() {
    let closed = ReplyReader::new(THINK, None, false);
    let open = ReplyReader::new(THINK, None, true);
    assert_eq!(
        check(&closed, "<think>\nHm.\n\nYes.\n</think>\n\nIt is 4.\n"),
        [thought("Hm.\n\nYes."), content("It is 4.\n")]
    );
    assert_eq!(check(&open, "\nHm.</think>4"), [thought("Hm."), content("4")]);
    assert_eq!(check(&open, "Hm. </thin"), [thought("Hm. </thin")], "no end");
    assert_eq!(check(&open, "Hm. \n"), [thought("Hm.")]);
    assert_eq!(check(&closed, "<think>\n\n</think>\n\n4"), [content("4")]);
    assert_eq!(check(&closed, "4 <think> 5</think>"), [content("4 <think> 5</think>")], "only at the start");
    assert_eq!(check(&closed, "<thin"), [content("<thin")]);
    assert_eq!(check(&closed, ""), []);
    let gemma = ReplyReader::new(Some(THOUGHTS[1]), None, false);
    assert_eq!(check(&gemma, "<|channel>thought\nHm.\n<channel|>4"), [thought("Hm."), content("4")]);
}

#[test]
fn templates_tell_how_thoughts_are_written() {
    assert_eq!(Thoughts::of("{{ '<think>\\n\\n</think>' }}"), THINK);
    assert_eq!(Thoughts::of("{{ content.split('</think>')[-1] }}"), THINK);
    let mistral = Thoughts::of("{{ '[THINK]' + block['thinking'] + '[/THINK]' }}");
    assert_eq!(mistral, Some(THOUGHTS[2]));
    let mistral = ReplyReader::new(mistral, tools(CallFormat::MistralArguments), false);
    let found = check(&mistral, "[THINK]Let me see.[/THINK]Well.[TOOL_CALLS]now[ARGS]{}");
    assert_eq!(found, [thought("Let me see."), content("Well."), call("now", "{}")]);
    assert_eq!(Thoughts::of("{{ '<|channel>thought\\n<channel|>' }}"), Some(THOUGHTS[1]));
    assert_eq!(Thoughts::of("{{ message.content }}"), None);
    assert!(THOUGHTS[0].are_open_after("<|im_start|>assistant\n<think>\n"));
    assert!(!THOUGHTS[0].are_open_after("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
}

/// Texts made to be expensive, character by character: work that grows with the square of their length would be 10^11 steps, and this
/// test would not end.
#[test]
fn long_hostile_replies_are_read_to_their_end() {
    let hostile = [
        "<tool_call>{\"a\":\"",
        "<tool_call>{",
        "<tool_call>\n<function=weather><parameter=a></parameter>",
        " ",
        "<",
        "{",
        "[TOOL_CALLS]x",
    ];
    for format in
        [CallFormat::Hermes, CallFormat::Parameters, CallFormat::Llama, CallFormat::MistralArguments, CallFormat::Gemma]
    {
        for unit in hostile {
            let text = unit.repeat(400_000 / unit.len());
            let (mut reader, mut parts) = (ReplyReader::new(THINK, tools(format), false), Vec::new());
            text.char_indices()
                .for_each(|(at, character)| reader.push(&text[at..at + character.len_utf8()], &mut parts));
            reader.finish(&mut parts);
            let found: usize =
                parts.iter().map(|part| if let Part::Content(text) = part { text.len() } else { 0 }).sum();
            assert!(found <= text.len(), "{format:?} {unit:?}");
        }
    }
}

#[test]
fn only_so_many_calls_are_made() {
    let one = "<tool_call>{\"name\": \"now\"}</tool_call>";
    let found = check(&ReplyReader::new(None, tools(CallFormat::Hermes), false), &one.repeat(MOST_CALLS + 1));
    assert_eq!(found.len(), MOST_CALLS + 1);
    assert_eq!(found.last(), Some(&content(one)));
    let mut single = Tools::for_tests(CallFormat::Hermes, functions());
    single.allows_several = false;
    let reader = ReplyReader::new(None, Some(Arc::new(single)), false);
    assert_eq!(check(&reader, &one.repeat(3)), [call("now", "{}")]);
}

/// Reads what chat templates make of a reply with thoughts and a call: those of `crates/text`, or with `PTERO_TEMPLATES` those that
/// `conformance/check_templates.py` brings.
#[test]
fn calls_are_read_as_templates_write_them() {
    let included = concat!(env!("CARGO_MANIFEST_DIR"), "/../text/tests/goldens");
    let folder = std::env::var("PTERO_TEMPLATES").unwrap_or_else(|_| included.to_owned());
    let known: Value = serde_json::from_slice(&std::fs::read(format!("{folder}/templates.json")).unwrap()).unwrap();
    let conversation = &known["conversations"]["reasoned_call"];
    let shown = &conversation["variables"]["tools"][0]["function"];
    let function = json!({"name": shown["name"], "parameters": shown["parameters"]});
    let [question, reply, ..] = conversation["messages"].as_array().unwrap().as_slice() else { panic!("two messages") };
    let arguments = &reply["tool_calls"][0]["function"]["arguments"];
    let (mut read, mut wrong) = (Vec::new(), Vec::new());
    for (name, results) in known["results"].as_object().unwrap() {
        let source = std::fs::read_to_string(format!("{folder}/templates/{name}.jinja")).unwrap();
        let rendered = results["reasoned_call"]["text"].as_str().unwrap_or_default();
        let Some(format) = CallFormat::of(&source) else { continue };
        // Some templates show functions, but not the calls of earlier turns.
        let Some((_, after)) = rendered.rsplit_once(question["content"].as_str().unwrap()) else { continue };
        if !after.contains("\"days\"") && !after.contains("=days>") && !after.contains("days:") {
            continue;
        }
        let thoughts = Thoughts::of(&source);
        let opener = if format.opener().is_empty() { "{" } else { format.opener() };
        let begins = [thoughts.map_or(opener, |thoughts| thoughts.open), opener].map(|begin| after.find(begin));
        let start = begins.into_iter().flatten().min().unwrap_or_default();
        let functions = vec![serde_json::from_value(function.clone()).unwrap()];
        let reader = ReplyReader::new(thoughts, Some(Arc::new(Tools::for_tests(format, functions))), false);
        let parts = check(&reader, &after[start..]);
        let call = parts.iter().find_map(|part| match part {
            Part::Call(call) => Some((call.name.as_str(), serde_json::from_str::<Value>(&call.arguments).unwrap())),
            Part::Reasoning(_) | Part::Content(_) => None,
        });
        let shows_thoughts = thoughts.is_some() && after.contains(reply["reasoning_content"].as_str().unwrap());
        let reasoning = parts.iter().find_map(|part| match part {
            Part::Reasoning(text) => Some(text.trim()),
            Part::Call(_) | Part::Content(_) => None,
        });
        let is_read = !shows_thoughts || reasoning == reply["reasoning_content"].as_str();
        match call {
            Some(("weather", found)) if found == *arguments && is_read => read.push((name, format, shows_thoughts)),
            Some(_) | None => wrong.push(format!("{name}, {format:?}: {parts:#?}\nof\n{}", &after[start..])),
        }
    }
    println!("{read:#?}");
    assert!(wrong.is_empty() && read.len() > 2, "{}", wrong.join("\n\n"));
}
