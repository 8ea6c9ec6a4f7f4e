//! The C face declared in inflight_text.h. Everything unsafe is here; the other modules are safe Rust.
mod bpe_file;
mod flavour;
mod methods;
mod stream;
mod template;
mod tokenizer;

use std::borrow::Cow;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

pub use stream::Stream;
pub use template::Template;
pub use tokenizer::Tokenizer;

pub const INVALID: i32 = 1;
pub const INTERNAL: i32 = 2;
pub const RAISED: i32 = 3;
pub const UNSUPPORTED: i32 = 4;

/// What went wrong: a code of the header and a message.
#[derive(Debug)]
pub struct Fault {
    pub code: i32,
    pub message: String,
}

impl Fault {
    pub fn invalid(message: impl ToString) -> Fault {
        Fault { code: INVALID, message: message.to_string() }
    }
}

#[repr(C)]
pub struct Bytes {
    data: *mut u8,
    size: usize,
    capacity: usize,
}

#[repr(C)]
pub struct Ids {
    data: *mut i32,
    size: usize,
    capacity: usize,
}

impl From<String> for Bytes {
    fn from(text: String) -> Bytes {
        let mut bytes = std::mem::ManuallyDrop::new(text.into_bytes());
        Bytes { data: bytes.as_mut_ptr(), size: bytes.len(), capacity: bytes.capacity() }
    }
}

impl From<Vec<i32>> for Ids {
    fn from(ids: Vec<i32>) -> Ids {
        let mut ids = std::mem::ManuallyDrop::new(ids);
        Ids { data: ids.as_mut_ptr(), size: ids.len(), capacity: ids.capacity() }
    }
}

unsafe fn slice<'a>(data: *const u8, size: usize) -> &'a [u8] {
    if size == 0 {
        return &[];
    }
    std::slice::from_raw_parts(data, size)
}

unsafe fn text<'a>(data: *const u8, size: usize) -> Cow<'a, str> {
    String::from_utf8_lossy(slice(data, size))
}

/// Runs `work`; hands its value to `store`, or its error (a panic included) to `error`.
unsafe fn guarded<T>(error: *mut Bytes, store: impl FnOnce(T), work: impl FnOnce() -> Result<T, Fault>) -> i32 {
    let fault = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => {
            store(value);
            return 0;
        }
        Ok(Err(fault)) => fault,
        Err(payload) => {
            let words = payload
                .downcast_ref::<&str>()
                .map(|s| s.to_string())
                .or_else(|| payload.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "no message".into());
            Fault { code: INTERNAL, message: format!("the text library panicked: {words}") }
        }
    };
    if !error.is_null() {
        error.write(fault.message.into());
    }
    fault.code
}

/// A panic is reported through `error`, not on stderr.
fn silence_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|_| {})));
}

#[no_mangle]
pub unsafe extern "C" fn inflight_text_free_bytes(bytes: Bytes) {
    if !bytes.data.is_null() {
        drop(Vec::from_raw_parts(bytes.data, bytes.size, bytes.capacity));
    }
}

#[no_mangle]
pub unsafe extern "C" fn inflight_text_free_ids(ids: Ids) {
    if !ids.data.is_null() {
        drop(Vec::from_raw_parts(ids.data, ids.size, ids.capacity));
    }
}

/// Cargo.toml pins both versions exactly, so this text cannot drift from what is linked.
#[no_mangle]
pub extern "C" fn inflight_text_versions() -> *const u8 {
    concat!("tokenizers 0.23.2, minijinja 2.24.0", "\0").as_ptr()
}

#[no_mangle]
pub unsafe extern "C" fn inflight_text_tokenizer_load(
    json: *const u8,
    json_size: usize,
    options: *const u8,
    options_size: usize,
    out: *mut *const Tokenizer,
    error: *mut Bytes,
) -> i32 {
    silence_panics();
    guarded(
        error,
        |t: Tokenizer| out.write(Arc::into_raw(Arc::new(t))),
        || Tokenizer::load(slice(json, json_size), slice(options, options_size)),
    )
}

#[no_mangle]
pub unsafe extern "C" fn inflight_text_tokenizer_free(tokenizer: *const Tokenizer) {
    if !tokenizer.is_null() {
        drop(Arc::from_raw(tokenizer));
    }
}

#[no_mangle]
pub unsafe extern "C" fn inflight_text_encode(
    tokenizer: &Tokenizer,
    data: *const u8,
    size: usize,
    add_special: i32,
    plain: i32,
    out: *mut Ids,
    error: *mut Bytes,
) -> i32 {
    guarded(
        error,
        |ids: Vec<i32>| out.write(ids.into()),
        || tokenizer.encode(&text(data, size), add_special != 0, plain != 0),
    )
}

#[no_mangle]
pub unsafe extern "C" fn inflight_text_decode(
    tokenizer: &Tokenizer,
    ids: *const i32,
    count: usize,
    skip_special: i32,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    let ids = if count == 0 { &[] } else { std::slice::from_raw_parts(ids, count) };
    guarded(error, |s: String| out.write(s.into()), || tokenizer.decode(ids, skip_special != 0))
}

#[no_mangle]
pub unsafe extern "C" fn inflight_text_id_of(tokenizer: &Tokenizer, data: *const u8, size: usize) -> i32 {
    catch_unwind(AssertUnwindSafe(|| tokenizer.id_of(&text(data, size)))).unwrap_or(-1)
}

#[no_mangle]
pub extern "C" fn inflight_text_is_special(tokenizer: &Tokenizer, id: i32) -> i32 {
    catch_unwind(AssertUnwindSafe(|| tokenizer.is_special(id) as i32)).unwrap_or(0)
}

#[no_mangle]
pub extern "C" fn inflight_text_id_limit(tokenizer: &Tokenizer) -> i32 {
    tokenizer.id_limit()
}

#[no_mangle]
pub unsafe extern "C" fn inflight_text_token_of(tokenizer: &Tokenizer, id: i32, out: *mut Bytes, error: *mut Bytes) -> i32 {
    guarded(error, |s: String| out.write(s.into()), || Ok(tokenizer.token_of(id).unwrap_or_default()))
}

#[no_mangle]
pub unsafe extern "C" fn inflight_text_stream_new(
    tokenizer: *const Tokenizer,
    skip_special: i32,
    out: *mut *mut Stream,
    error: *mut Bytes,
) -> i32 {
    Arc::increment_strong_count(tokenizer);
    let tokenizer = Arc::from_raw(tokenizer);
    guarded(error, |s: Stream| out.write(Box::into_raw(Box::new(s))), || Stream::new(tokenizer, skip_special != 0))
}

#[no_mangle]
pub unsafe extern "C" fn inflight_text_stream_free(stream: *mut Stream) {
    if !stream.is_null() {
        drop(Box::from_raw(stream));
    }
}

#[no_mangle]
pub unsafe extern "C" fn inflight_text_stream_feed(stream: &mut Stream, id: i32, out: *mut Bytes, error: *mut Bytes) -> i32 {
    guarded(error, |s: String| out.write(s.into()), || stream.feed(id))
}

#[no_mangle]
pub unsafe extern "C" fn inflight_text_stream_finish(stream: &mut Stream, out: *mut Bytes, error: *mut Bytes) -> i32 {
    guarded(error, |s: String| out.write(s.into()), || stream.finish())
}

#[no_mangle]
pub unsafe extern "C" fn inflight_text_template_compile(
    source: *const u8,
    size: usize,
    out: *mut *mut Template,
    error: *mut Bytes,
) -> i32 {
    silence_panics();
    guarded(error, |t: Template| out.write(Box::into_raw(Box::new(t))), || Template::compile(&text(source, size)))
}

#[no_mangle]
pub unsafe extern "C" fn inflight_text_template_free(compiled: *mut Template) {
    if !compiled.is_null() {
        drop(Box::from_raw(compiled));
    }
}

#[no_mangle]
pub unsafe extern "C" fn inflight_text_template_render(
    compiled: &Template,
    variables: *const u8,
    size: usize,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    guarded(error, |s: String| out.write(s.into()), || compiled.render(&text(variables, size)))
}
