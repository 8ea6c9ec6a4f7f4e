//! Methods of Python's str, list and dict that minijinja-contrib lacks or answers differently.
use minijinja::value::{from_args, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use crate::flavour::str_text;

/// Methods of Python's str that have no counterpart here. A template that calls one is refused when it is loaded.
pub const UNSUPPORTED: &[&str] = &["encode", "translate", "maketrans", "expandtabs", "isidentifier", "isprintable", "format_map"];

fn char_index(text: &str, byte: Option<usize>) -> i64 {
    byte.map_or(-1, |b| text[..b].chars().count() as i64)
}

fn padded(text: &str, args: &[Value], left: impl Fn(usize) -> usize) -> Result<Value, Error> {
    let (width, fill): (i64, Option<&str>) = from_args(args)?;
    let missing = (width.max(0) as usize).saturating_sub(text.chars().count());
    let before = left(missing);
    let fill = fill.unwrap_or(" ");
    Ok(Value::from(format!("{}{text}{}", fill.repeat(before), fill.repeat(missing - before))))
}

fn missing(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{what} not found"))
}

fn partition(text: &str, args: &[Value], last: bool) -> Result<Value, Error> {
    let (separator,): (&str,) = from_args(args)?;
    let parts = if last { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match (parts, last) {
        (Some((before, after)), _) => [before, separator, after],
        (None, false) => [text, "", ""],
        (None, true) => ["", "", text],
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    let all = |test: fn(char) -> bool| from_args::<()>(args).map(|()| Value::from(!text.is_empty() && text.chars().all(test)));
    let cased = |upper: bool| {
        from_args::<()>(args).map(|()| {
            let wrong = |c: char| if upper { c.is_lowercase() } else { c.is_uppercase() };
            let right = |c: char| if upper { c.is_uppercase() } else { c.is_lowercase() };
            Value::from(text.chars().any(right) && !text.chars().any(wrong))
        })
    };
    let found = |last: bool| {
        from_args::<(&str,)>(args).map(|(what,)| char_index(text, if last { text.rfind(what) } else { text.find(what) }))
    };
    Some(match method {
        "isspace" => all(char::is_whitespace),
        "isdigit" | "isnumeric" | "isdecimal" => all(char::is_numeric),
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isupper" => cased(true),
        "islower" => cased(false),
        "find" => found(false).map(Value::from),
        "rfind" => found(true).map(Value::from),
        "index" | "rindex" => found(method == "rindex").and_then(|i| if i < 0 { Err(missing("substring")) } else { Ok(Value::from(i)) }),
        "removeprefix" => from_args::<(&str,)>(args).map(|(p,)| Value::from(text.strip_prefix(p).unwrap_or(text))),
        "removesuffix" => from_args::<(&str,)>(args).map(|(p,)| Value::from(text.strip_suffix(p).unwrap_or(text))),
        "partition" => partition(text, args, false),
        "rpartition" => partition(text, args, true),
        "rsplit" => from_args::<(Option<&str>, Option<i64>)>(args).map(|(separator, limit)| {
            let n = limit.filter(|n| *n >= 0).map_or(usize::MAX, |n| n as usize + 1);
            let mut parts: Vec<String> = match separator {
                Some(separator) => text.rsplitn(n, separator).map(String::from).collect(),
                None => {
                    let mut parts = Vec::new();
                    let mut rest = text.trim_end();
                    while !rest.is_empty() && parts.len() + 1 < n {
                        let cut = rest.rfind(char::is_whitespace).map_or(0, |i| i + rest[i..].chars().next().map_or(1, char::len_utf8));
                        parts.push(rest[cut..].to_string());
                        rest = rest[..cut].trim_end();
                    }
                    if !rest.is_empty() {
                        parts.push(rest.to_string());
                    }
                    parts
                }
            };
            parts.reverse();
            Value::from(parts)
        }),
        "join" => from_args::<(&Value,)>(args).and_then(|(values,)| {
            let parts: Result<Vec<String>, Error> = values
                .try_iter()?
                .map(|v| v.as_str().map(String::from).ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "join: not a string")))
                .collect();
            Ok(Value::from(parts?.join(text)))
        }),
        "zfill" => from_args::<(i64,)>(args).map(|(width,)| {
            let zeros = "0".repeat((width.max(0) as usize).saturating_sub(text.chars().count()));
            Value::from(match text.strip_prefix(['-', '+']) {
                Some(digits) => format!("{}{zeros}{digits}", &text[..1]),
                None => format!("{zeros}{text}"),
            })
        }),
        "ljust" => padded(text, args, |_| 0),
        "rjust" => padded(text, args, |n| n),
        "center" => from_args::<(i64, Option<&str>)>(args).and_then(|(width, _)| padded(text, args, |n| n / 2 + (n & width.max(0) as usize & 1))),
        "casefold" => from_args::<()>(args).map(|()| Value::from(text.to_lowercase().replace('\u{df}', "ss"))),
        "swapcase" => from_args::<()>(args).map(|()| {
            Value::from(
                text.chars()
                    .map(|c| if c.is_uppercase() { c.to_lowercase().to_string() } else { c.to_uppercase().to_string() })
                    .collect::<String>(),
            )
        }),
        _ => return None,
    })
}

pub fn call(state: &State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        if let Some(result) = string_method(text, method, args) {
            return result;
        }
    }
    match (value.kind(), method) {
        (ValueKind::Seq | ValueKind::Map, "copy") => {
            let () = from_args(args)?;
            Ok(value.clone())
        }
        (ValueKind::Seq, "index") => {
            let (what,): (&Value,) = from_args(args)?;
            let at = value.try_iter()?.position(|item| item == *what);
            at.map(Value::from).ok_or_else(|| missing(&str_text(what)))
        }
        (ValueKind::Iterable, "split" | "strip") => Err(Error::from(ErrorKind::UnknownMethod)),
        _ => pycompat::unknown_method_callback(state, value, method, args),
    }
}
