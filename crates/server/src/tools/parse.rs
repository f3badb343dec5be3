//! Whole calls, from their text. What is not exactly a call is none.

use super::{Call, CallFormat, Function};
use serde_json::{Map, Value};

/// Lists and objects inside each other, as in serde's JSON.
const MOST_LEVELS: usize = 128;
/// What Gemma writes around strings.
const GEMMA_QUOTE: &str = "<|\"|>";

/// Reads calls, which follow the opener of the format.
pub(super) fn calls<'a>(
    format: CallFormat,
    body: &str,
    function: impl Fn(&str) -> Option<&'a Function>,
) -> Option<Vec<Call>> {
    let body = body.trim_start();
    let is_known = |call: Call| function(&call.name).map(|_| call);
    match format {
        CallFormat::Hermes => Some(vec![is_known(named(json(body)?)?)?]),
        CallFormat::Llama => Some(vec![is_known(named(json(body)?)?)?]),
        CallFormat::MistralList => {
            let Value::Array(list) = json(body)? else { return None };
            list.into_iter().map(|call| is_known(named(call)?)).collect()
        }
        CallFormat::MistralArguments => {
            let (name, rest) = body.split_once("[ARGS]")?;
            let name = name.split("[CALL_ID]").next()?.trim();
            Some(vec![is_known(call(name, json(rest)?)?)?])
        }
        CallFormat::Parameters => Some(vec![parameters(body, function)?]),
        CallFormat::Gemma => {
            let (name, rest) = body.strip_prefix("call:")?.split_once('{')?;
            let braced = format!("{{{rest}");
            // Calls that have to be made have plain JSON.
            let arguments = json(&braced).or_else(|| gemma(&mut braced.as_str(), 0))?;
            Some(vec![is_known(call(name.trim(), arguments)?)?])
        }
    }
}

/// Reads the JSON that a text begins with.
fn json(text: &str) -> Option<Value> {
    serde_json::Deserializer::from_str(text).into_iter().next()?.ok()
}

/// Reads an object with a name and arguments.
fn named(value: Value) -> Option<Call> {
    let Value::Object(mut object) = value else { return None };
    let arguments = object.remove("arguments").or_else(|| object.remove("parameters"));
    call(object.get("name")?.as_str()?, arguments.unwrap_or_else(|| Map::new().into()))
}

/// Returns a call whose arguments are an object, or the text of one.
fn call(name: &str, arguments: Value) -> Option<Call> {
    let arguments = match arguments {
        Value::String(text) => serde_json::from_str(&text).ok()?,
        arguments => arguments,
    };
    arguments.is_object().then(|| Call { name: name.to_owned(), arguments: arguments.to_string() })
}

/// Reads `<function=f><parameter=a>value</parameter></function>`.
fn parameters<'a>(body: &str, function: impl Fn(&str) -> Option<&'a Function>) -> Option<Call> {
    let (name, mut rest) = body.strip_prefix("<function=")?.split_once('>')?;
    let function = function(name.trim())?;
    let mut arguments = Map::new();
    loop {
        rest = rest.trim_start();
        let Some((key, after)) = rest.strip_prefix("<parameter=").and_then(|rest| rest.split_once('>')) else {
            break;
        };
        let (value, after) = value_and_rest(after)?;
        let key = key.trim();
        arguments.insert(key.to_owned(), typed(value, function.property(key)));
        rest = after;
    }
    rest.starts_with("</function>")
        .then(|| Call { name: name.trim().to_owned(), arguments: Value::from(arguments).to_string() })
}

/// Splits at the first `</parameter>` that another parameter or the end of the function follows: values are not escaped.
fn value_and_rest(text: &str) -> Option<(&str, &str)> {
    const END: &str = "</parameter>";
    text.match_indices(END).find_map(|(at, _)| {
        let (value, after) = (text.get(..at)?, text.get(at + END.len()..)?);
        let next = after.trim_start();
        let is_end = next.starts_with("<parameter=") || next.starts_with("</function>");
        let value = value.strip_prefix('\n').unwrap_or(value);
        is_end.then(|| (value.strip_suffix('\n').unwrap_or(value), after))
    })
}

/// Returns a value: as it is where the schema wants a string, else as JSON if it is some.
fn typed(value: &str, schema: Option<&Value>) -> Value {
    if schema.is_some_and(is_text) {
        return value.into();
    }
    serde_json::from_str(value).unwrap_or_else(|_| value.into())
}

/// Returns `true` if a schema allows strings only.
pub(super) fn is_text(schema: &Value) -> bool {
    let choices = schema.get("enum").and_then(Value::as_array);
    schema.get("type").is_some_and(|kind| kind == "string")
        || schema.get("const").is_some_and(Value::is_string)
        || choices.is_some_and(|choices| !choices.is_empty() && choices.iter().all(Value::is_string))
}

/// Reads a value as Gemma's template writes it: JSON with keys without quotes, and strings between its own quotes.
fn gemma(rest: &mut &str, level: usize) -> Option<Value> {
    skip_space(rest);
    if level > MOST_LEVELS {
        return None;
    }
    if let Some(text) = rest.strip_prefix(GEMMA_QUOTE) {
        let (string, after) = text.split_once(GEMMA_QUOTE)?;
        *rest = after;
        return Some(string.into());
    }
    match rest.chars().next()? {
        '{' => {
            let mut object = Map::new();
            list(rest, '}', |rest| {
                let (key, after) = rest.split_once(':')?;
                let key = key.trim();
                let key = key.strip_prefix(GEMMA_QUOTE).and_then(|key| key.strip_suffix(GEMMA_QUOTE)).unwrap_or(key);
                *rest = after;
                object.insert(key.trim_matches('"').to_owned(), gemma(rest, level + 1)?);
                Some(())
            })?;
            Some(object.into())
        }
        '[' => {
            let mut values = Vec::new();
            list(rest, ']', |rest| {
                values.push(gemma(rest, level + 1)?);
                Some(())
            })?;
            Some(values.into())
        }
        _ => {
            let mut stream = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
            let value = stream.next()?.ok()?;
            *rest = rest.get(stream.byte_offset()..)?;
            Some(value)
        }
    }
}

/// Reads what is between brackets, separated by commas.
fn list(rest: &mut &str, end: char, mut item: impl FnMut(&mut &str) -> Option<()>) -> Option<()> {
    let mut characters = rest.chars();
    characters.next()?;
    *rest = characters.as_str();
    loop {
        skip_space(rest);
        if let Some(after) = rest.strip_prefix(end) {
            *rest = after;
            return Some(());
        }
        item(rest)?;
        skip_space(rest);
        match rest.strip_prefix(',') {
            Some(after) => *rest = after,
            None if rest.starts_with(end) => {}
            None => return None,
        }
    }
}

fn skip_space(rest: &mut &str) {
    *rest = rest.trim_start();
}
