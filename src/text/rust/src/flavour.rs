//! How Python prints values: str(), repr() and json.dumps(), as chat templates show them.
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// repr(float): the shortest digits that read back, with an exponent below 1e-4 and from 1e16 on.
pub fn float_text(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value == 0.0 || (-4..16).contains(&exponent) {
        let fixed = format!("{value}");
        return if fixed.contains('.') { fixed } else { fixed + ".0" };
    }
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

fn float_of(value: &Value) -> Option<f64> {
    if value.kind() == ValueKind::Number && !value.is_integer() {
        f64::try_from(value.clone()).ok()
    } else {
        None
    }
}

/// Values nested deeper than this are made by hostile templates only; printing recurses.
const MAX_DEPTH: usize = 200;

/// str(value)
pub fn str_text(value: &Value) -> String {
    match value.kind() {
        ValueKind::Seq | ValueKind::Map => repr_text(value, MAX_DEPTH),
        _ => match float_of(value) {
            Some(number) => float_text(number),
            None => value.to_string(),
        },
    }
}

fn repr_string(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 || (0x7f..0xa1).contains(&(c as u32)) || c == '\u{ad}' => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if matches!(c as u32, 0x2000..=0x200f | 0x2028..=0x202f | 0x205f..=0x206f | 0x3000 | 0xd800..=0xf8ff | 0xfeff) => {
                out.push_str(&format!("\\u{:04x}", c as u32))
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// repr(value); "..." for what lies deeper than `depth`.
fn repr_text(value: &Value, depth: usize) -> String {
    if depth == 0 {
        return "...".into();
    }
    match value.kind() {
        ValueKind::String => repr_string(value.as_str().unwrap_or_default()),
        ValueKind::Undefined => "Undefined".into(),
        ValueKind::Seq => {
            let items: Vec<String> = value.try_iter().into_iter().flatten().map(|item| repr_text(&item, depth - 1)).collect();
            format!("[{}]", items.join(", "))
        }
        ValueKind::Map => {
            let mut items: Vec<String> = Vec::new();
            for key in value.try_iter().into_iter().flatten() {
                let item = value.get_item(&key).unwrap_or_default();
                items.push(format!("{}: {}", repr_text(&key, depth - 1), repr_text(&item, depth - 1)));
            }
            format!("{{{}}}", items.join(", "))
        }
        _ => str_text(value),
    }
}

struct Dump {
    ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

fn json_string(text: &str, ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c if ascii && !(' '..='~').contains(&c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn json_scalar(value: &Value) -> Option<String> {
    match value.kind() {
        ValueKind::None => Some("null".into()),
        ValueKind::Bool => Some(if value.is_true() { "true".into() } else { "false".into() }),
        ValueKind::Number => Some(match float_of(value) {
            Some(n) if n.is_nan() => "NaN".into(),
            Some(n) if n.is_infinite() => if n > 0.0 { "Infinity".into() } else { "-Infinity".into() },
            Some(n) => float_text(n),
            None => value.to_string(),
        }),
        _ => None,
    }
}

impl Dump {
    fn break_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if let Some(scalar) = json_scalar(value) {
            out.push_str(&scalar);
            return Ok(());
        }
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: more than {MAX_DEPTH} levels")));
        }
        match value.kind() {
            ValueKind::String => json_string(value.as_str().unwrap_or_default(), self.ascii, out),
            ValueKind::Seq => {
                let mut any = false;
                out.push('[');
                for item in value.try_iter()? {
                    if any {
                        out.push_str(&self.item_separator);
                    }
                    any = true;
                    self.break_line(depth + 1, out);
                    self.write(&item, depth + 1, out)?;
                }
                if any {
                    self.break_line(depth, out);
                }
                out.push(']');
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                out.push('{');
                for (i, key) in keys.iter().enumerate() {
                    if i > 0 {
                        out.push_str(&self.item_separator);
                    }
                    self.break_line(depth + 1, out);
                    match key.as_str() {
                        Some(text) => json_string(text, self.ascii, out),
                        None => json_string(&json_scalar(key).unwrap_or_else(|| key.to_string()), self.ascii, out),
                    }
                    out.push_str(&self.key_separator);
                    self.write(&value.get_item(key)?, depth + 1, out)?;
                }
                if !keys.is_empty() {
                    self.break_line(depth, out);
                }
                out.push('}');
            }
            kind => {
                return Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: a value of kind {kind} has no JSON form")));
            }
        }
        Ok(())
    }
}

/// The filter `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`: json.dumps, nothing escaped for HTML.
pub fn tojson(value: &Value, ascii: Option<bool>, indent: Option<Value>, separators: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let ascii = kwargs.get::<Option<bool>>("ensure_ascii")?.or(ascii).unwrap_or(false);
    let sort_keys = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let indent = kwargs.get::<Option<Value>>("indent")?.or(indent).filter(|v| !v.is_none());
    let separators = kwargs.get::<Option<Value>>("separators")?.or(separators).filter(|v| !v.is_none());
    kwargs.assert_all_used()?;
    let indent = match indent {
        None => None,
        Some(v) => Some(match v.as_str() {
            Some(text) => text.to_string(),
            None => " ".repeat(i64::try_from(v)?.max(0) as usize),
        }),
    };
    let (item_separator, key_separator) = match separators {
        Some(pair) => (str_text(&pair.get_item_by_index(0)?), str_text(&pair.get_item_by_index(1)?)),
        None => (if indent.is_some() { ",".into() } else { ", ".into() }, ": ".into()),
    };
    let mut out = String::new();
    Dump { ascii, indent, item_separator, key_separator, sort_keys }.write(value, 0, &mut out)?;
    Ok(Value::from(out))
}
