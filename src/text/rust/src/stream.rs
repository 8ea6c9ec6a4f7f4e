//! Streaming decoding: the joined pieces equal the decoding of the whole, byte for byte, at constant cost per token.
//!
//! tokenizer.json's decoder is a chain of steps over a list of tokens. Each step becomes a streaming step that releases a token
//! as soon as nothing that follows can change what the step makes of it. Where no such rule is known, it waits for the end.
use std::sync::Arc;

use serde_json::Value;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::Decoder;

use crate::tokenizer::Tokenizer;
use crate::Fault;

type Tokens = Vec<String>;

trait Step: Send {
    fn feed(&mut self, token: String, out: &mut Tokens) -> Result<(), Fault>;
    fn finish(&mut self, out: &mut Tokens) -> Result<(), Fault>;
}

fn chain(decoder: &DecoderWrapper, tokens: Tokens) -> Result<Tokens, Fault> {
    decoder.decode_chain(tokens).map_err(Fault::invalid)
}

/// A step that treats each token by itself, except that the first may differ: Replace, Strip, Metaspace, WordPiece.
struct PerToken {
    decoder: DecoderWrapper,
    first: bool,
}

impl Step for PerToken {
    fn feed(&mut self, token: String, out: &mut Tokens) -> Result<(), Fault> {
        if self.first {
            self.first = false;
            out.extend(chain(&self.decoder, vec![token])?);
        } else {
            // A letter in front keeps this token from being the first one.
            out.extend(chain(&self.decoder, vec!["x".into(), token])?.into_iter().skip(1));
        }
        Ok(())
    }
    fn finish(&mut self, _: &mut Tokens) -> Result<(), Fault> {
        Ok(())
    }
}

/// BPEDecoder treats the last token differently: one token is held back.
struct LastDiffers {
    decoder: DecoderWrapper,
    held: Option<String>,
}

impl Step for LastDiffers {
    fn feed(&mut self, token: String, out: &mut Tokens) -> Result<(), Fault> {
        if let Some(before) = self.held.replace(token) {
            out.extend(chain(&self.decoder, vec![before, "x".into()])?.into_iter().take(1));
        }
        Ok(())
    }
    fn finish(&mut self, out: &mut Tokens) -> Result<(), Fault> {
        if let Some(last) = self.held.take() {
            out.extend(chain(&self.decoder, vec![last])?);
        }
        Ok(())
    }
}

/// CTC drops a token equal to the one before it.
struct Deduplicated {
    decoder: DecoderWrapper,
    before: Option<String>,
}

impl Step for Deduplicated {
    fn feed(&mut self, token: String, out: &mut Tokens) -> Result<(), Fault> {
        if self.before.as_ref() != Some(&token) {
            out.extend(chain(&self.decoder, vec![token.clone()])?);
            self.before = Some(token);
        }
        Ok(())
    }
    fn finish(&mut self, _: &mut Tokens) -> Result<(), Fault> {
        Ok(())
    }
}

/// ByteFallback joins a run of "<0xE4>" tokens; if the whole run is not UTF-8, every byte of it becomes one U+FFFD.
/// So a run can only be released when it has ended.
struct ByteRuns {
    decoder: DecoderWrapper,
    run: Tokens,
}

impl Step for ByteRuns {
    fn feed(&mut self, token: String, out: &mut Tokens) -> Result<(), Fault> {
        let is_byte = token.len() == 6
            && token.starts_with("<0x")
            && token.ends_with('>')
            && token.get(3..5).is_some_and(|digits| u8::from_str_radix(digits, 16).is_ok());
        if is_byte {
            self.run.push(token);
            return Ok(());
        }
        self.finish(out)?;
        out.push(token);
        Ok(())
    }
    fn finish(&mut self, out: &mut Tokens) -> Result<(), Fault> {
        if !self.run.is_empty() {
            out.extend(chain(&self.decoder, std::mem::take(&mut self.run))?);
        }
        Ok(())
    }
}

/// The byte-level alphabet: printable Latin-1 characters stand for themselves, the other bytes for U+0100 and up, in order:
/// 0x00..=0x20 (33 of them), 0x7f..=0xa0 (34), 0xad.
fn byte_of(character: char) -> Option<u8> {
    let code = character as u32;
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => Some(code as u8),
        0x100..=0x120 => Some((code - 0x100) as u8),
        0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// ByteLevel: all tokens together are one string of bytes, read as UTF-8 with U+FFFD for each maximal invalid part.
struct Utf8Bytes {
    pending: Vec<u8>, // at most the 3 bytes of a character that may still become valid
}

impl Step for Utf8Bytes {
    fn feed(&mut self, token: String, out: &mut Tokens) -> Result<(), Fault> {
        match token.chars().map(byte_of).collect::<Option<Vec<u8>>>() {
            Some(bytes) => self.pending.extend(bytes),
            None => self.pending.extend(token.as_bytes()),
        }
        let mut text = String::new();
        let mut rest: &[u8] = &self.pending;
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    rest = after;
                    let Some(bad) = error.error_len() else { break };
                    text.push('\u{fffd}');
                    rest = &rest[bad..];
                }
            }
        }
        self.pending = rest.to_vec();
        if !text.is_empty() {
            out.push(text);
        }
        Ok(())
    }
    fn finish(&mut self, out: &mut Tokens) -> Result<(), Fault> {
        if !self.pending.is_empty() {
            out.push(String::from_utf8_lossy(&self.pending).into_owned());
            self.pending.clear();
        }
        Ok(())
    }
}

/// Strip after Fuse: the pieces are one text, of which up to `start` leading and `stop` trailing `content` characters go.
struct StripWhole {
    content: char,
    start: usize, // leading ones that may still go
    stop: usize,
    held: String, // trailing content characters, at most `stop`: they go if nothing follows
}

impl Step for StripWhole {
    fn feed(&mut self, token: String, out: &mut Tokens) -> Result<(), Fault> {
        let mut text = token.as_str();
        while self.start > 0 && !text.is_empty() {
            match text.strip_prefix(self.content) {
                Some(rest) => {
                    text = rest;
                    self.start -= 1;
                }
                None => self.start = 0,
            }
        }
        let mut whole = std::mem::take(&mut self.held);
        whole.push_str(text);
        let mut keep = whole.len();
        for _ in 0..self.stop {
            match whole[..keep].strip_suffix(self.content) {
                Some(rest) => keep = rest.len(),
                None => break,
            }
        }
        self.held = whole.split_off(keep);
        if !whole.is_empty() {
            out.push(whole);
        }
        Ok(())
    }
    fn finish(&mut self, _: &mut Tokens) -> Result<(), Fault> {
        self.held.clear();
        Ok(())
    }
}

/// No rule known: everything from the first token on waits for the end.
struct AtEnd {
    decoder: DecoderWrapper,
    fused: bool, // the input is one token in pieces
    held: Tokens,
}

impl Step for AtEnd {
    fn feed(&mut self, token: String, _: &mut Tokens) -> Result<(), Fault> {
        self.held.push(token);
        Ok(())
    }
    fn finish(&mut self, out: &mut Tokens) -> Result<(), Fault> {
        let mut tokens = std::mem::take(&mut self.held);
        if self.fused {
            tokens = vec![tokens.concat()];
        }
        if !tokens.is_empty() {
            out.extend(chain(&self.decoder, tokens)?);
        }
        Ok(())
    }
}

/// No decoder at all: tokens joined by spaces.
struct Spaced {
    first: bool,
}

impl Step for Spaced {
    fn feed(&mut self, token: String, out: &mut Tokens) -> Result<(), Fault> {
        out.push(if self.first { token } else { format!(" {token}") });
        self.first = false;
        Ok(())
    }
    fn finish(&mut self, _: &mut Tokens) -> Result<(), Fault> {
        Ok(())
    }
}

/// `fused` says whether the steps so far have made one token of all.
fn add_steps(json: &Value, fused: &mut bool, steps: &mut Vec<Box<dyn Step>>) -> Result<(), Fault> {
    let kind = json["type"].as_str().unwrap_or_default();
    if kind == "Sequence" {
        for inner in json["decoders"].as_array().into_iter().flatten() {
            add_steps(inner, fused, steps)?;
        }
        return Ok(());
    }
    let decoder: DecoderWrapper = serde_json::from_value(json.clone()).map_err(Fault::invalid)?;
    let step: Box<dyn Step> = match (kind, *fused) {
        ("Fuse", _) => {
            *fused = true;
            return Ok(());
        }
        ("ByteLevel", false) => {
            *fused = true;
            Box::new(Utf8Bytes { pending: Vec::new() })
        }
        ("Strip", true) => Box::new(StripWhole {
            content: json["content"].as_str().and_then(|s| s.chars().next()).unwrap_or(' '),
            start: json["start"].as_u64().unwrap_or(0) as usize,
            stop: json["stop"].as_u64().unwrap_or(0) as usize,
            held: String::new(),
        }),
        ("Replace" | "Strip" | "Metaspace" | "WordPiece", false) => Box::new(PerToken { decoder, first: true }),
        ("BPEDecoder", false) => Box::new(LastDiffers { decoder, held: None }),
        ("CTC", false) => Box::new(Deduplicated { decoder, before: None }),
        ("ByteFallback", false) => Box::new(ByteRuns { decoder, run: Vec::new() }),
        _ => Box::new(AtEnd { decoder, fused: *fused, held: Vec::new() }),
    };
    steps.push(step);
    Ok(())
}

pub struct Stream {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    steps: Vec<Box<dyn Step>>,
}

impl Stream {
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Result<Stream, Fault> {
        let mut steps: Vec<Box<dyn Step>> = Vec::new();
        if tokenizer.decoder_json().is_null() {
            steps.push(Box::new(Spaced { first: true }));
        } else {
            add_steps(tokenizer.decoder_json(), &mut false, &mut steps)?;
        }
        Ok(Stream { tokenizer, skip_special, steps })
    }

    fn pass(&mut self, from: usize, mut tokens: Tokens) -> Result<Tokens, Fault> {
        for step in &mut self.steps[from..] {
            let mut out = Tokens::new();
            for token in tokens {
                step.feed(token, &mut out)?;
            }
            tokens = out;
        }
        Ok(tokens)
    }

    pub fn feed(&mut self, id: i32) -> Result<String, Fault> {
        match self.tokenizer.visible_token(id, self.skip_special) {
            Some(token) => Ok(self.pass(0, vec![token])?.concat()),
            None => Ok(String::new()),
        }
    }

    pub fn finish(&mut self) -> Result<String, Fault> {
        let mut text = String::new();
        for i in 0..self.steps.len() {
            let mut out = Tokens::new();
            self.steps[i].finish(&mut out)?;
            text.push_str(&self.pass(i + 1, out)?.concat());
        }
        Ok(text)
    }
}
