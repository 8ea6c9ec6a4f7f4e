# The Rust text library (tokenizers, chat templates), built by cargo with its lock file. Replaced by the real rules when src/text/rust exists.
add_library(inflight_text_rust INTERFACE)
