//! A tokenizer.json with a BPE model, read in one pass straight into the library's tables. The library itself goes through a tree of
//! the whole file, copied twice: for a vocabulary of 150,000 that is half of the time and 100 MB of the memory of loading.
//! What it cannot read, the library's own reader gets, and says what is wrong.
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{json, Map, Value};
use tokenizers::models::bpe::{BpeBuilder, Vocab, BPE};
use tokenizers::tokenizer::AddedToken;

/// The flattened members keep lists from being taken for objects, as they do in the library.
#[derive(Deserialize)]
struct File {
    model: Model,
    #[serde(default)]
    added_tokens: Vec<NumberedToken>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
struct NumberedToken {
    #[serde(rename = "id")]
    _id: u32,
    #[serde(flatten)]
    token: AddedToken,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: String,
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    vocab: Vocab,
    merges: Merges,
    #[serde(flatten)]
    _rest: Map<String, Value>,
}

struct Merges(Vec<(String, String)>);

/// One merge, in the two spellings that files have: "a b" and ["a", "b"].
enum Merge {
    Line(Option<(String, String)>), // None: the "#version" line of a merges.txt
    Pair((String, String)),
}

struct MergeVisitor;

impl<'de> Visitor<'de> for MergeVisitor {
    type Value = Merge;

    fn expecting(&self, out: &mut std::fmt::Formatter) -> std::fmt::Result {
        out.write_str("a merge")
    }

    fn visit_str<E: Error>(self, line: &str) -> Result<Merge, E> {
        if line.starts_with("#version") {
            return Ok(Merge::Line(None));
        }
        match line.split_once(' ') {
            Some((left, right)) if !right.contains(' ') => Ok(Merge::Line(Some((left.to_owned(), right.to_owned())))),
            _ => Err(E::custom("a merge must be two pieces")),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Merge, A::Error> {
        <(String, String)>::deserialize(serde::de::value::SeqAccessDeserializer::new(list)).map(Merge::Pair)
    }
}

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Merge, D::Error> {
        deserializer.deserialize_any(MergeVisitor)
    }
}

struct MergesVisitor;

impl<'de> Visitor<'de> for MergesVisitor {
    type Value = Merges;

    fn expecting(&self, out: &mut std::fmt::Formatter) -> std::fmt::Result {
        out.write_str("a list of merges")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merges, A::Error> {
        let mut pairs = Vec::new();
        let mut lines = None; // which of the two spellings the list has; a mixture is an error
        while let Some(merge) = list.next_element()? {
            let is_line = matches!(merge, Merge::Line(_));
            if *lines.get_or_insert(is_line) != is_line {
                return Err(A::Error::custom("merges in two spellings"));
            }
            match merge {
                Merge::Line(pair) => pairs.extend(pair),
                Merge::Pair(pair) => pairs.push(pair),
            }
        }
        Ok(Merges(pairs))
    }
}

impl<'de> Deserialize<'de> for Merges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Merges, D::Error> {
        deserializer.deserialize_seq(MergesVisitor)
    }
}

fn build(model: Model) -> Option<BPE> {
    if model.kind != "BPE" {
        return None;
    }
    let mut builder = BpeBuilder::new().vocab_and_merges(model.vocab, model.merges.0);
    if let Some(dropout) = model.dropout {
        builder = builder.dropout(dropout);
    }
    if let Some(token) = model.unk_token {
        builder = builder.unk_token(token);
    }
    if let Some(prefix) = model.continuing_subword_prefix {
        builder = builder.continuing_subword_prefix(prefix);
    }
    if let Some(suffix) = model.end_of_word_suffix {
        builder = builder.end_of_word_suffix(suffix);
    }
    builder = builder.fuse_unk(model.fuse_unk.unwrap_or(false));
    builder = builder.byte_fallback(model.byte_fallback.unwrap_or(false));
    builder = builder.ignore_merges(model.ignore_merges.unwrap_or(false));
    builder.build().ok()
}

/// None: no BPE file, or a broken one.
fn read_bpe(json: &[u8]) -> Option<tokenizers::Tokenizer> {
    let File { model, added_tokens, mut rest } = serde_json::from_slice(json).ok()?;
    let model = build(model)?;
    rest.insert("model".into(), json!({"type": "BPE", "vocab": {}, "merges": []}));
    let mut tokenizer: tokenizers::Tokenizer = serde_json::from_value(Value::Object(rest)).ok()?;
    tokenizer.with_model(model);
    tokenizer.add_tokens(added_tokens.into_iter().map(|numbered| numbered.token)).ok()?;
    Some(tokenizer)
}

pub fn read(json: &[u8]) -> tokenizers::Result<tokenizers::Tokenizer> {
    match read_bpe(json) {
        Some(tokenizer) => Ok(tokenizer),
        None => tokenizers::Tokenizer::from_bytes(json),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What both readers make of a file, as text; None where a reader refuses it.
    fn both(json: &str) -> (Option<String>, Option<String>) {
        let text = |tokenizer: tokenizers::Tokenizer| tokenizer.to_string(false).unwrap();
        (read_bpe(json.as_bytes()).map(text), tokenizers::Tokenizer::from_bytes(json).ok().map(text))
    }

    fn file(merges: &str, more: &str) -> String {
        format!(
            r#"{{"version":"1.0","added_tokens":[{{"id":0,"content":"<s>","single_word":false,"lstrip":true,"rstrip":false,"normalized":false,"special":true}},
            {{"id":9,"content":"new","single_word":true,"lstrip":false,"rstrip":false,"normalized":true,"special":false}}],
            "normalizer":{{"type":"NFC"}},"pre_tokenizer":{{"type":"Whitespace"}},"decoder":null,"post_processor":null,
            "model":{{"type":"BPE",{more}"vocab":{{"<s>":0,"a":1,"b":2,"c":3,"ab":4,"abc":5}},"merges":{merges}}}}}"#
        )
    }

    #[test]
    fn as_the_library_reads_it() {
        for merges in [r#"[["a","b"],["ab","c"]]"#, r##"["#version: 0.2","a b","ab c"]"##, "[]"] {
            for more in ["", r#""dropout":0.5,"unk_token":"<s>","fuse_unk":true,"byte_fallback":true,"ignore_merges":true,"#, r#""end_of_word_suffix":"c","continuing_subword_prefix":null,"other":1,"#] {
                let (ours, theirs) = both(&file(merges, more));
                assert!(ours.is_some(), "{merges} {more}");
                assert_eq!(ours, theirs, "{merges} {more}");
            }
        }
    }

    #[test]
    fn what_the_library_refuses_is_refused() {
        let bad = [
            file(r#"["a b",["ab","c"]]"#, ""),
            file(r#"[["a","b"],"ab c"]"#, ""),
            file(r#"["ab"]"#, ""),
            file(r#"["a b c"]"#, ""),
            file(r#"[["a"]]"#, ""),
            file(r#"[["a","b","c"]]"#, ""),
            file(r#"[["a","z"]]"#, ""),
            file("{}", ""),
            file("[]", r#""dropout":2,"#),
            file("[]", "").replace("1.0", "2.0"),
            file("[]", "").replace("\"id\":9,", ""),
            file("[]", "").replace("NFC", "NFX"),
            file("[]", "").replace("\"a\":1", "\"a\":-1"),
            file("[]", "").replace("\"a\":1", "\"a\":4294967296"),
            r#"{"version":"1.0","model":["BPE",null,null,null,null,null,null,null,{"a":0},[]]}"#.into(),
            r#"{"version":"1.0"}"#.into(),
            "[]".into(),
        ];
        for json in bad {
            let (ours, theirs) = both(&json);
            assert!(ours.is_none(), "{json}");
            assert!(theirs.is_none(), "{json}");
        }
    }
}
