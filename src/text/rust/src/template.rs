//! Chat templates: minijinja set up to answer as jinja2 does under transformers.
use minijinja::machinery::{get_compiled_template, tokenize, Instruction, Instructions, Token, WhitespaceConfig};
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};

use crate::{flavour, methods, Fault, INVALID, RAISED, UNSUPPORTED};

const NAME: &str = "chat_template";
const RAISED_MARK: &str = "\u{1}raised\u{1}";

// minijinja recurses once an operator or elif, and a template comes from the model's author: a chain of 100,000 would overflow the stack.
// Published templates stay under 200 tokens in a tag and 20 elif in all.
const MAX_TAG_TOKENS: usize = 2000;
const MAX_ELIFS: usize = 500;
/// Instructions in one rendering, some seconds; a conversation of 1,000 messages takes under a million.
const MAX_INSTRUCTIONS: u64 = 200_000_000;

pub struct Template {
    environment: Environment<'static>,
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED_MARK}{}", flavour::str_text(message))))
}

/// datetime.now().strftime(format), local time.
fn strftime_now(format: &str) -> Result<String, Error> {
    let format = std::ffi::CString::new(format).map_err(|_| Error::new(ErrorKind::InvalidOperation, "strftime_now: NUL in the format"))?;
    let mut buffer = [0u8; 1024];
    // SAFETY: localtime_r fills `parts`, strftime writes at most buffer.len() bytes; both only read their other arguments.
    let written = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut parts: libc::tm = std::mem::zeroed();
        libc::localtime_r(&now, &mut parts);
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), format.as_ptr(), &parts)
    };
    Ok(String::from_utf8_lossy(&buffer[..written]).into_owned())
}

/// `{% generation %}` marks what the model wrote; rendering passes it through in a scope of its own.
fn replace_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let Some(length) = rest[open..].find("%}") else { break };
        let tag = &rest[open..open + length + 2];
        let name = tag[2..length].trim_matches(['-', '+']).trim();
        let replacement = match name {
            "generation" => Some("with"),
            "endgeneration" => Some("endwith"),
            _ => None,
        };
        out.push_str(&rest[..open]);
        match replacement {
            Some(with) => out.push_str(&tag.replace(name, with)),
            None => out.push_str(tag),
        }
        rest = &rest[open + length + 2..];
    }
    out.push_str(rest);
    out
}

/// An undefined value has length 0.
fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    value.len().ok_or_else(|| Error::new(ErrorKind::InvalidOperation, format!("a value of kind {} has no length", value.kind())))
}

fn join(value: &Value, separator: Option<Value>, attribute: Option<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let separator = kwargs.get::<Option<Value>>("d")?.or(separator).map_or_else(String::new, |v| flavour::str_text(&v));
    let attribute = kwargs.get::<Option<Value>>("attribute")?.or(attribute).filter(|v| !v.is_none());
    kwargs.assert_all_used()?;
    if value.is_undefined() {
        return Ok(String::new());
    }
    let mut parts: Vec<String> = Vec::new();
    for item in value.try_iter()? {
        let mut item = item;
        if let Some(path) = attribute.as_ref() {
            for name in flavour::str_text(path).split('.') {
                item = match name.parse::<usize>() {
                    Ok(index) => item.get_item_by_index(index)?,
                    Err(_) => item.get_attr(name)?,
                };
            }
        }
        parts.push(flavour::str_text(&item));
    }
    Ok(parts.join(&separator))
}

/// int(value, default=0, base=10): the default where the text is no number.
fn int(value: &Value, default: Option<Value>, base: Option<u32>) -> Value {
    let fallback = || default.clone().unwrap_or_else(|| Value::from(0));
    if let Some(text) = value.as_str() {
        let base = base.filter(|b| (2..=36).contains(b)).unwrap_or(10);
        let text = text.trim().replace('_', "");
        let digits = match base {
            2 => text.trim_start_matches("0b"),
            8 => text.trim_start_matches("0o"),
            16 => text.trim_start_matches("0x"),
            _ => &text,
        };
        return match (i64::from_str_radix(digits, base), digits.parse::<f64>()) {
            (Ok(number), _) => Value::from(number),
            (_, Ok(number)) if number.is_finite() => Value::from(number as i64),
            _ => fallback(),
        };
    }
    match value.kind() {
        ValueKind::Bool => Value::from(value.is_true() as i64),
        ValueKind::Number if value.is_integer() => value.clone(),
        ValueKind::Number => f64::try_from(value.clone()).map_or_else(|_| fallback(), |number| Value::from(number as i64)),
        _ => fallback(),
    }
}

/// float(value, default=0.0)
fn float(value: &Value, default: Option<Value>) -> Value {
    let number = match value.as_str() {
        Some(text) => text.trim().parse::<f64>().ok(),
        None if value.kind() == ValueKind::Bool => Some(value.is_true() as i64 as f64),
        None => f64::try_from(value.clone()).ok(),
    };
    number.map_or_else(|| default.unwrap_or_else(|| Value::from(0.0)), Value::from)
}

/// round(value, precision=0, method="common"): ties of the exact binary value go to even, as Python's round().
fn round(value: &Value, precision: Option<usize>, method: Option<&str>) -> Result<Value, Error> {
    let precision = precision.unwrap_or(0).min(300);
    let number = f64::try_from(value.clone())?;
    let factor = 10f64.powi(precision as i32);
    match method.unwrap_or("common") {
        "common" if value.is_integer() => Ok(value.clone()),
        "common" => Ok(Value::from(format!("{number:.precision$}").parse::<f64>().unwrap_or(number))),
        "ceil" => Ok(Value::from((number * factor).ceil() / factor)),
        "floor" => Ok(Value::from((number * factor).floor() / factor)),
        other => Err(Error::new(ErrorKind::InvalidOperation, format!("round: no method \"{other}\"; known: common ceil floor"))),
    }
}

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_unknown_method_callback(methods::call);
    env.set_fuel(Some(MAX_INSTRUCTIONS));
    env.set_formatter(|out, _, value| std::fmt::Write::write_str(out, &flavour::str_text(value)).map_err(Error::from));
    env.add_filter("tojson", flavour::tojson);
    env.add_filter("string", |value: &Value| flavour::str_text(value));
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter("join", join);
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_filter("round", round);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
    // In Python strings and mappings have a length and items too.
    env.add_test("sequence", |v: &Value| matches!(v.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map));
    env.add_test("iterable", |v: &Value| {
        matches!(v.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Iterable | ValueKind::Undefined)
    });
    // Python's bool is a number; what is neither data nor a string here is a function or a macro.
    env.add_test("number", |v: &Value| matches!(v.kind(), ValueKind::Number | ValueKind::Bool));
    env.add_test("callable", |v: &Value| v.kind() == ValueKind::Plain);
    env
}

fn describe(error: &Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), |d| format!("{}: {d}", error.kind()));
    match error.line() {
        Some(line) => format!("line {line}: {detail}"),
        None => detail,
    }
}

fn fault(error: &Error) -> Fault {
    let mut cause: &dyn std::error::Error = error;
    loop {
        if let Some(words) = cause.downcast_ref::<Error>().and_then(|e| e.detail()).and_then(|d| d.strip_prefix(RAISED_MARK)) {
            return Fault { code: RAISED, message: words.to_string() };
        }
        match cause.source() {
            Some(next) => cause = next,
            None => return Fault { code: INVALID, message: describe(error) },
        }
    }
}

/// Filters, tests and methods are looked up when they run; here they are looked up once, when the template is loaded.
fn check_names(env: &Environment, instructions: &Instructions) -> Result<(), Fault> {
    let state = env.empty_state();
    for i in 0..instructions.len() as u32 {
        let unknown = match instructions.get(i) {
            Some(Instruction::ApplyFilter(name, ..)) => match state.apply_filter(name, &[]) {
                Err(error) if error.kind() == ErrorKind::UnknownFilter => Some(format!("there is no filter \"{name}\"")),
                _ => None,
            },
            Some(Instruction::PerformTest(name, ..)) => match state.perform_test(name, &[]) {
                Err(error) if error.kind() == ErrorKind::UnknownTest => Some(format!("there is no test \"is {name}\"")),
                _ => None,
            },
            Some(Instruction::CallMethod(name, ..)) if methods::UNSUPPORTED.contains(name) => Some(format!("the method .{name}() is not supported")),
            _ => None,
        };
        if let Some(what) = unknown {
            let line = instructions.get_line(i).unwrap_or(0);
            return Err(Fault { code: UNSUPPORTED, message: format!("line {line}: {what}") });
        }
    }
    Ok(())
}

fn check_size(source: &str) -> Result<(), Fault> {
    let whitespace = WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true };
    let (mut in_tag, mut elifs) = (0, 0);
    for token in tokenize(source, false, Default::default(), whitespace) {
        let Ok((token, span)) = token else { return Ok(()) }; // the parser says it better
        in_tag += 1;
        match token {
            Token::VariableStart | Token::BlockStart | Token::TemplateData(_) => in_tag = 0,
            Token::Ident("elif") => elifs += 1,
            _ => {}
        }
        if in_tag > MAX_TAG_TOKENS || elifs > MAX_ELIFS {
            let what = if in_tag > MAX_TAG_TOKENS { format!("a tag of more than {MAX_TAG_TOKENS} tokens") } else { format!("more than {MAX_ELIFS} elif") };
            return Err(Fault { code: UNSUPPORTED, message: format!("line {}: {what}", span.start_line) });
        }
    }
    Ok(())
}

impl Template {
    pub fn compile(source: &str) -> Result<Template, Fault> {
        let source = replace_generation_tags(source);
        check_size(&source)?;
        let mut env = environment();
        env.add_template_owned(NAME, source).map_err(|e| fault(&e))?;
        let template = env.get_template(NAME).map_err(|e| fault(&e))?;
        let compiled = get_compiled_template(&template);
        check_names(&env, &compiled.instructions)?;
        for block in compiled.blocks.values() {
            check_names(&env, block)?;
        }
        Ok(Template { environment: env })
    }

    pub fn render(&self, variables: &str) -> Result<String, Fault> {
        let variables: serde_json::Value = serde_json::from_str(variables).map_err(|e| Fault::invalid(format!("template variables: {e}")))?;
        let template = self.environment.get_template(NAME).map_err(|e| fault(&e))?;
        template.render(Value::from_serialize(&variables)).map_err(|e| fault(&e))
    }
}
