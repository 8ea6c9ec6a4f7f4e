//! Hugging Face tokenizers with what tokenizer_config.json adds to tokenizer.json, as transformers does on loading.
use std::collections::HashSet;
use std::sync::OnceLock;

use serde_json::Value;
use tokenizers::tokenizer::{AddedToken, Model};
use tokenizers::Decoder;

use crate::Fault;

/// Beyond tokenizer.json. All members may be absent.
#[derive(Default)]
struct TokenizerOptions {
    /// "added_tokens": [{"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}], from `added_tokens_decoder`.
    added: Vec<(i64, AddedToken)>,
    /// "special_tokens": texts named as bos, eos and so on; they become special where the vocabulary has them.
    special: Vec<String>,
    /// "split_special_tokens": the text of special tokens is ordinary text everywhere.
    split_special: bool,
}

impl TokenizerOptions {
    fn parse(json: &[u8]) -> Result<TokenizerOptions, Fault> {
        let mut options = TokenizerOptions::default();
        if json.is_empty() {
            return Ok(options);
        }
        let value: Value = serde_json::from_slice(json).map_err(|e| Fault::invalid(format!("options: {e}")))?;
        for entry in value["added_tokens"].as_array().into_iter().flatten() {
            let flag = |name: &str| entry[name].as_bool().unwrap_or(false);
            let special = flag("special");
            let token = AddedToken::from(entry["content"].as_str().unwrap_or_default(), special)
                .single_word(flag("single_word"))
                .lstrip(flag("lstrip"))
                .rstrip(flag("rstrip"))
                .normalized(entry["normalized"].as_bool().unwrap_or(!special));
            options.added.push((entry["id"].as_i64().unwrap_or(-1), token));
        }
        options.added.sort_by_key(|(id, _)| *id);
        for text in value["special_tokens"].as_array().into_iter().flatten() {
            options.special.extend(text.as_str().map(String::from));
        }
        options.split_special = value["split_special_tokens"].as_bool().unwrap_or(false);
        Ok(options)
    }
}

pub struct Tokenizer {
    main: tokenizers::Tokenizer,
    /// Without the special and marker-like added tokens; made when first asked for.
    plain: OnceLock<Result<tokenizers::Tokenizer, String>>,
    special: HashSet<u32>,
    id_limit: i32,
    decoder_json: Value,
}

/// An added token that stands for structure rather than text: "<tool_call>", "[INST]". Whitespace runs and words are not.
fn is_marker(token: &AddedToken) -> bool {
    let text = token.content.trim();
    let wrapped = |open: char, close: char| text.starts_with(open) && text.ends_with(close);
    token.special || (text.len() > 2 && (wrapped('<', '>') || wrapped('[', ']')))
}

impl Tokenizer {
    pub fn load(json: &[u8], options: &[u8]) -> Result<Tokenizer, Fault> {
        let options = TokenizerOptions::parse(options)?;
        let mut main = crate::bpe_file::read(json).map_err(Fault::invalid)?;
        // Limits and padding of the training set-up do not apply to a prompt.
        main.with_truncation(None).map_err(Fault::invalid)?;
        main.with_padding(None);
        Self::add_missing(&mut main, &options)?;
        main.set_encode_special_tokens(options.split_special);

        let added = main.get_added_tokens_decoder();
        let special: HashSet<u32> = added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect();
        let id_limit = Self::model_limit(&main).max(added.keys().max().map_or(0, |id| id + 1)) as i32;
        let decoder_json = match main.get_decoder() {
            Some(decoder) => serde_json::to_value(decoder).map_err(Fault::invalid)?,
            None => Value::Null,
        };
        Ok(Tokenizer { main, plain: OnceLock::new(), special, id_limit, decoder_json })
    }

    /// The model's largest id plus one. Ids are nearly always dense; only where they are not is the vocabulary copied to look.
    fn model_limit(main: &tokenizers::Tokenizer) -> u32 {
        let model = main.get_model();
        let size = model.get_vocab_size() as u32;
        if (0..size).all(|id| model.id_to_token(id).is_some()) {
            return size;
        }
        model.get_vocab().into_values().max().map_or(0, |id| id + 1)
    }

    fn add_missing(main: &mut tokenizers::Tokenizer, options: &TokenizerOptions) -> Result<(), Fault> {
        let mut known = main.get_added_tokens_decoder();
        for (id, token) in &options.added {
            if *id < 0 || known.get(&(*id as u32)).is_some_and(|have| have == token) {
                continue;
            }
            if let Some(have) = main.token_to_id(&token.content) {
                if i64::from(have) != *id {
                    return Err(Fault::invalid(format!(
                        "token {:?} has id {have} in tokenizer.json and id {id} in tokenizer_config.json (added_tokens_decoder)",
                        token.content
                    )));
                }
            }
            main.add_tokens([token.clone()]).map_err(Fault::invalid)?;
        }
        known = main.get_added_tokens_decoder();
        for text in &options.special {
            let Some(id) = main.token_to_id(text) else { continue };
            if !known.contains_key(&id) {
                main.add_special_tokens([AddedToken::from(text.clone(), true)]).map_err(Fault::invalid)?;
            }
        }
        Ok(())
    }

    fn plain(&self) -> Result<&tokenizers::Tokenizer, Fault> {
        let made = self.plain.get_or_init(|| {
            let mut plain = tokenizers::Tokenizer::new(self.main.get_model().clone());
            plain.with_normalizer(self.main.get_normalizer().cloned()).map_err(|e| e.to_string())?;
            plain.with_pre_tokenizer(self.main.get_pre_tokenizer().cloned());
            let mut kept: Vec<(u32, AddedToken)> =
                self.main.get_added_tokens_decoder().into_iter().filter(|(_, token)| !is_marker(token)).collect();
            kept.sort_by_key(|(id, _)| *id);
            plain.add_tokens(kept.into_iter().map(|(_, token)| token)).map_err(|e| e.to_string())?;
            Ok(plain)
        });
        made.as_ref().map_err(Fault::invalid)
    }

    pub fn encode(&self, text: &str, add_special: bool, plain: bool) -> Result<Vec<i32>, Fault> {
        if !plain {
            let encoding = self.main.encode_fast(text, add_special).map_err(Fault::invalid)?;
            return Ok(encoding.get_ids().iter().map(|id| *id as i32).collect());
        }
        let tokenizer = self.plain()?;
        let encoding = tokenizer.encode_fast(text, false).map_err(Fault::invalid)?;
        let model_size = tokenizer.get_model().get_vocab_size() as u32;
        let mut ids = Vec::with_capacity(encoding.len());
        for id in encoding.get_ids() {
            // Added tokens that the model's own vocabulary lacks were numbered anew in `plain`: back through their text.
            let id = if *id < model_size {
                Some(*id)
            } else {
                tokenizer.id_to_token(*id).and_then(|token| self.main.token_to_id(&token))
            };
            ids.extend(id.map(|id| id as i32));
        }
        Ok(ids)
    }

    pub fn decode(&self, ids: &[i32], skip_special: bool) -> Result<String, Fault> {
        let tokens: Vec<String> = ids.iter().filter_map(|id| self.visible_token(*id, skip_special)).collect();
        match self.main.get_decoder() {
            None => Ok(tokens.join(" ")),
            Some(_) if tokens.is_empty() => Ok(String::new()),
            Some(decoder) => decoder.decode(tokens).map_err(Fault::invalid),
        }
    }

    /// The token that decoding sees; none for ids without text and for special tokens to be skipped.
    pub fn visible_token(&self, id: i32, skip_special: bool) -> Option<String> {
        if skip_special && self.is_special(id) {
            return None;
        }
        self.token_of(id)
    }

    pub fn token_of(&self, id: i32) -> Option<String> {
        self.main.id_to_token(u32::try_from(id).ok()?)
    }

    pub fn id_of(&self, token: &str) -> i32 {
        self.main.token_to_id(token).map_or(-1, |id| id as i32)
    }

    pub fn is_special(&self, id: i32) -> bool {
        u32::try_from(id).is_ok_and(|id| self.special.contains(&id))
    }

    pub fn id_limit(&self) -> i32 {
        self.id_limit
    }

    pub fn decoder_json(&self) -> &Value {
        &self.decoder_json
    }
}
