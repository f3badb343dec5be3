//! Limits what a template may copy, visit and build during a rendering.

use super::python;
use super::rewrite::{PLAIN, REPEATED, WALKED, WRITTEN};
use crate::Limits;
use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, filters};

type Result<T> = std::result::Result<T, Error>;

/// The cost of a value besides its texts: visiting it takes as long as copying this many bytes.
const VALUE_BYTES: usize = 128;
/// Lists inside each other; the reader of JSON takes 128.
const DEEPEST: usize = 160;
/// The longest text that may be repeated.
const SHORT_TEXT: usize = 64;
const WIDEST_INDENT: usize = 256;
/// Filters that build lists inside lists, which templates for chats do not use.
const LEFT_OUT: &[&str] = &["batch", "slice", "groupby", "zip", "chain", "pprint"];

/// Bytes spent so far.
#[derive(Default)]
struct Spent(usize);

/// The limits as the filters need them.
#[derive(Clone, Copy)]
struct Budget {
    work_bytes: usize,
    text_bytes: usize,
}

/// Replaces everything in the environment that copies or builds by a version that counts.
pub(super) fn install(environment: &mut Environment<'_>, limits: &Limits) {
    let budget = Budget { work_bytes: limits.template_work_bytes, text_bytes: limits.output_bytes };
    environment.add_filter(WALKED, move |state: &mut State, value: Value| budget.pass(state, value, false));
    environment.add_filter(WRITTEN, move |state: &mut State, value: Value| budget.pass(state, value, true));
    environment.add_filter(REPEATED, move |state: &mut State, value: Value| budget.repeated(state, value));
    let plain = move |state: &mut State, _: Value, bytes: usize| budget.spend(state, bytes).map(|()| "");
    environment.add_filter(PLAIN, plain);
    environment.set_formatter(move |out, state, value| {
        budget.charge(state, value, true)?;
        minijinja::escape_formatter(out, state, value)
    });
    environment.set_unknown_method_callback(move |state, value, method, arguments| {
        budget.method(state, value, method, arguments)
    });
    texts(environment, budget);
    lists(environment, budget);
    wrapped(environment, budget);
    for name in LEFT_OUT {
        environment.add_filter(*name, |_: Value, _: Rest<ValueOrKwargs>| -> Result<Value> {
            Err(Error::new(ErrorKind::UnknownFilter, "not supported in chat templates"))
        });
    }
}

/// Filters that make a text of a value.
fn texts(environment: &mut Environment<'_>, budget: Budget) {
    environment.add_filter("tojson", move |state: &mut State, value: &Value, options: Kwargs| {
        budget.charge(state, value, true)?;
        tojson(value, options)
    });
    environment.add_filter("string", move |state: &mut State, value: Value| {
        budget.charge(state, &value, true)?;
        Ok::<_, Error>(value.to_string())
    });
    environment.add_filter("replace", move |state: &mut State, text: String, from: String, to: String| {
        budget.replacing(state, &text, &from, &to)?;
        Ok::<_, Error>(text.replace(&from, &to))
    });
}

/// Functions and tests for lists and maps.
fn lists(environment: &mut Environment<'_>, budget: Budget) {
    environment.add_function("namespace", move |state: &mut State, defaults: Option<ValueOrKwargs>| {
        if let Some(defaults) = &defaults {
            budget.charge(state, defaults, false)?;
        }
        minijinja::functions::namespace(defaults)
    });
    environment.add_function("dict", move |state: &mut State, arguments: Rest<ValueOrKwargs>| -> Result<Value> {
        let mut pairs = Vec::new();
        for argument in arguments.iter() {
            budget.charge(state, argument, false)?;
            for key in argument.try_iter()? {
                pairs.push((key.clone(), argument.get_item(&key)?));
            }
        }
        Ok(Value::from_pairs(pairs))
    });
    environment.add_filter("items", move |state: &mut State, value: Value| {
        let items = filters::items(&value)?;
        budget.pass(state, items, false)
    });
    // In Python, none is not iterable.
    environment.add_test("iterable", |value: Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), String | Seq | Map | Iterable | Undefined)
    });
}

/// The library's own filters, each charged for its result before it runs.
fn wrapped(environment: &mut Environment<'_>, budget: Budget) {
    let charge_all = move |state: &mut State, arguments: &[Value]| -> Result<()> {
        arguments.iter().try_for_each(|argument| budget.charge(state, argument, true))
    };
    guard(environment, "map", Value::from_function(filters::map), charge_all);
    guard(environment, "join", Value::from_function(filters::join), move |state, arguments| {
        charge_all(state, arguments)?;
        let count = arguments.first().and_then(Value::len).unwrap_or(0);
        let separators = arguments.iter().filter_map(Value::as_str);
        separators.map(str::len).try_for_each(|bytes| budget.spend(state, bytes.saturating_mul(count)))
    });
    guard(environment, "format", Value::from_function(filters::format), move |state, arguments| {
        charge_all(state, arguments)?;
        // A width could be any number, and a text could be named many times.
        let plain =
            |text: &str| !text.contains(['*', '(', '{']) && !text.contains(|digit: char| digit.is_ascii_digit());
        if arguments.first().and_then(Value::as_str).is_some_and(plain) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::InvalidOperation, "`format` with numbers or names is not supported"))
    });
    guard(environment, "indent", Value::from_function(filters::indent), move |state, arguments| {
        let lines = arguments.first().and_then(Value::as_str).map_or(0, |text| text.lines().count());
        // The width is the second argument, or named.
        let named = arguments.last().and_then(|last| last.get_attr("width").ok());
        let widths = arguments.iter().skip(1).chain(&named).filter(|value| value.is_number());
        for width in widths.map(|width| width.as_usize().unwrap_or(usize::MAX)) {
            if width > WIDEST_INDENT {
                return Err(too_large());
            }
            budget.spend(state, lines.saturating_mul(width))?;
        }
        Ok(())
    });
}

/// Adds a filter that runs only if `check` accepts its arguments.
fn guard(
    environment: &mut Environment<'_>,
    name: &'static str,
    filter: Value,
    check: impl Fn(&mut State, &[Value]) -> Result<()> + Send + Sync + 'static,
) {
    environment.add_filter(name, move |state: &mut State, arguments: Rest<ValueOrKwargs>| {
        let arguments: Vec<Value> = arguments.0.into_iter().map(ValueOrKwargs::into_value).collect();
        check(state, &arguments)?;
        filter.call(state, &arguments)
    });
}

impl Budget {
    fn spend(self, state: &mut State, bytes: usize) -> Result<()> {
        let spent = state.get_or_insert_extension_with(Spent::default);
        spent.0 = spent.0.saturating_add(bytes);
        if spent.0 > self.work_bytes || bytes > self.work_bytes { Err(too_large()) } else { Ok(()) }
    }

    /// Charges for a value that is visited, with its texts if they are copied.
    fn charge(self, state: &mut State, value: &Value, texts: bool) -> Result<()> {
        if let Some(text) = value.as_str() {
            return if text.len() > self.text_bytes { Err(too_large()) } else { self.spend(state, text.len()) };
        }
        let mut cost = 0;
        let left = self.work_bytes.saturating_sub(state.get_or_insert_extension_with(Spent::default).0);
        measure(value, texts, 0, left, &mut cost)?;
        self.spend(state, cost)
    }

    fn pass(self, state: &mut State, value: Value, texts: bool) -> Result<Value> {
        self.charge(state, &value, texts)?;
        Ok(value)
    }

    /// An operand of `*`: a number, or something short that is repeated.
    fn repeated(self, state: &mut State, value: Value) -> Result<Value> {
        match value.kind() {
            ValueKind::Number => {
                let times = value.as_usize().unwrap_or(0);
                self.spend(state, times.min(self.work_bytes / 8).saturating_mul(SHORT_TEXT))?;
            }
            _ if value.len().unwrap_or(0) > SHORT_TEXT => return Err(too_large()),
            _ => self.charge(state, &value, true)?,
        }
        Ok(value)
    }

    fn replacing(self, state: &mut State, text: &str, from: &str, to: &str) -> Result<()> {
        let bytes = text.matches(from).count().saturating_mul(to.len()).saturating_add(text.len());
        if bytes > self.text_bytes { Err(too_large()) } else { self.spend(state, bytes) }
    }

    fn method(self, state: &mut State, value: &Value, method: &str, arguments: &[Value]) -> Result<Value> {
        self.charge(state, value, false)?;
        for argument in arguments {
            self.charge(state, argument, true)?;
        }
        let text = |at: usize| arguments.get(at).and_then(Value::as_str);
        match (method, value.as_str(), text(0), text(1)) {
            ("replace", Some(value), Some(from), Some(to)) => self.replacing(state, value, from, to)?,
            // A width could be any number, and `{}` with a name repeats a text.
            ("format", Some(value), ..) if value.replace("{}", "").contains(['{', '}']) => {
                return Err(Error::new(ErrorKind::UnknownMethod, "`format` with more than `{}` is not supported"));
            }
            ("join", Some(between), ..) => {
                let count = arguments.first().and_then(Value::len).unwrap_or(0);
                self.spend(state, count.saturating_mul(between.len()))?;
            }
            _ => {}
        }
        minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)
    }
}

/// Adds up the cost of visiting a value, up to what is left to spend.
fn measure(value: &Value, texts: bool, depth: usize, left: usize, cost: &mut usize) -> Result<()> {
    *cost = cost.saturating_add(VALUE_BYTES + if texts { value.as_str().map_or(0, str::len) } else { 0 });
    if *cost > left || depth > DEEPEST {
        return Err(too_large());
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()? {
                measure(&item, texts, depth + 1, left, cost)?;
            }
        }
        ValueKind::Map => {
            for key in value.try_iter()? {
                measure(&value.get_item(&key)?, texts, depth + 1, left, cost)?;
                measure(&key, texts, depth + 1, left, cost)?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn too_large() -> Error {
    Error::new(ErrorKind::InvalidOperation, "it copies or builds more than the limits allow")
}

/// Python's `json.dumps`, as transformers calls it.
fn tojson(value: &Value, options: Kwargs) -> Result<String> {
    let dump = python::Dump {
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent: options.get::<Option<usize>>("indent")?.map(|indent| indent.min(WIDEST_INDENT)),
        sorted: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        separators: options.get::<Option<Vec<String>>>("separators")?.map(separators).transpose()?,
    };
    options.assert_all_used()?;
    let value =
        serde_json::to_value(value).map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(dump.text(&value))
}

fn separators(pair: Vec<String>) -> Result<(String, String)> {
    let refused = |_| Error::new(ErrorKind::InvalidOperation, "`separators` are two texts");
    let pair: [String; 2] = pair.try_into().map_err(refused)?;
    Ok(pair.into())
}
