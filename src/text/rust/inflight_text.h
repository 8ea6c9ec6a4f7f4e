/* The C face of the Rust text library: tokenizing, streaming decoding, chat templates.
 *
 * Every call returns 0 on success. On failure it returns one of the codes below and puts a message into `error`; nothing else is written.
 * No call unwinds or aborts: a panic inside is caught and comes back as INFLIGHT_TEXT_INTERNAL.
 * Text is UTF-8 with a length, not NUL-terminated; invalid input bytes are read as U+FFFD, output is always valid UTF-8.
 * Buffers that a call fills are released with the matching inflight_text_free_*; a zeroed buffer may be freed too.
 */
#ifndef INFLIGHT_TEXT_H
#define INFLIGHT_TEXT_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  INFLIGHT_TEXT_OK = 0,
  INFLIGHT_TEXT_INVALID = 1,     /* the file, the text or the messages are wrong */
  INFLIGHT_TEXT_INTERNAL = 2,    /* a panic: our bug or the library's */
  INFLIGHT_TEXT_RAISED = 3,      /* a chat template called raise_exception: the message is the template's own words */
  INFLIGHT_TEXT_UNSUPPORTED = 4, /* a well-formed template uses something this engine lacks */
};

typedef struct inflight_text_tokenizer inflight_text_tokenizer; /* immutable once loaded: calls from several threads are safe */
typedef struct inflight_text_stream inflight_text_stream;       /* one decoding stream; one thread at a time */
typedef struct inflight_text_template inflight_text_template;   /* immutable once compiled */

typedef struct {
  char* data;
  size_t size;
  size_t capacity;
} inflight_text_bytes;

typedef struct {
  int32_t* data;
  size_t size;
  size_t capacity;
} inflight_text_ids;

void inflight_text_free_bytes(inflight_text_bytes bytes);
void inflight_text_free_ids(inflight_text_ids ids);

/* "tokenizers 0.23.2, minijinja 2.24.0": a static string. */
const char* inflight_text_versions(void);

/* `json`: the bytes of tokenizer.json. `options`: a JSON object (see TokenizerOptions in tokenizer.rs), or empty. */
int inflight_text_tokenizer_load(const char* json, size_t json_size, const char* options, size_t options_size, inflight_text_tokenizer** out,
                                 inflight_text_bytes* error);
void inflight_text_tokenizer_free(inflight_text_tokenizer* tokenizer);
/* plain != 0: the text of special tokens in `text` is encoded as ordinary text. */
int inflight_text_encode(const inflight_text_tokenizer* tokenizer, const char* text, size_t size, int add_special, int plain, inflight_text_ids* out,
                         inflight_text_bytes* error);
/* Ids without a token (negative, or beyond the vocabulary) give no text. */
int inflight_text_decode(const inflight_text_tokenizer* tokenizer, const int32_t* ids, size_t count, int skip_special, inflight_text_bytes* out,
                         inflight_text_bytes* error);
int32_t inflight_text_id_of(const inflight_text_tokenizer* tokenizer, const char* token, size_t size); /* -1: no such token */
int inflight_text_is_special(const inflight_text_tokenizer* tokenizer, int32_t id);
int32_t inflight_text_id_limit(const inflight_text_tokenizer* tokenizer); /* largest id with a token, plus one */
/* The token itself as the vocabulary spells it; empty for an id without one. */
int inflight_text_token_of(const inflight_text_tokenizer* tokenizer, int32_t id, inflight_text_bytes* out, inflight_text_bytes* error);

/* A stream shares ownership of what it needs of the tokenizer: it may outlive it. */
int inflight_text_stream_new(const inflight_text_tokenizer* tokenizer, int skip_special, inflight_text_stream** out, inflight_text_bytes* error);
void inflight_text_stream_free(inflight_text_stream* stream);
int inflight_text_stream_feed(inflight_text_stream* stream, int32_t id, inflight_text_bytes* out, inflight_text_bytes* error);
int inflight_text_stream_finish(inflight_text_stream* stream, inflight_text_bytes* out, inflight_text_bytes* error);

/* Compile errors carry the line. */
int inflight_text_template_compile(const char* source, size_t size, inflight_text_template** out, inflight_text_bytes* error);
void inflight_text_template_free(inflight_text_template* compiled);
/* `variables`: a JSON object, keys in insertion order; its members are the template's variables. */
int inflight_text_template_render(const inflight_text_template* compiled, const char* variables, size_t size, inflight_text_bytes* out,
                                  inflight_text_bytes* error);

#ifdef __cplusplus
}
#endif
#endif
