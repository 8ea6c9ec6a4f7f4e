# The Rust text library (tokenizers, chat templates): built by cargo with its lock file, linked through inflight_text_rust.
# The cargo target directory is shared by all build trees of this checkout; each tree links its own copy of the archive.
# No network is used once the crates have been downloaded (`cargo fetch --locked --manifest-path src/text/rust/Cargo.toml`).
find_program(INFLIGHT_CARGO cargo HINTS $ENV{CARGO_HOME}/bin $ENV{HOME}/.cargo/bin)
if(NOT INFLIGHT_CARGO)
  message(FATAL_ERROR "cargo is not on PATH: the tokenizer library needs Rust 1.85 or newer. "
                      "Install it with `apt-get install cargo-web rustc-web` (Debian 12) or rustup, or set -DINFLIGHT_CARGO=/path/to/cargo.")
endif()

set(text_rust ${CMAKE_SOURCE_DIR}/src/text/rust)
set(text_cargo_target ${CMAKE_SOURCE_DIR}/build/cargo-target)
set(text_archive ${CMAKE_BINARY_DIR}/text_library/libinflight_text_rust.a)
file(GLOB text_rust_sources CONFIGURE_DEPENDS ${text_rust}/src/*.rs)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/text_library)

add_custom_command(
  OUTPUT ${text_archive}
  COMMAND ${CMAKE_COMMAND} -E env CARGO_TARGET_DIR=${text_cargo_target}
          ${INFLIGHT_CARGO} build --quiet --release --locked --manifest-path ${text_rust}/Cargo.toml
  COMMAND ${CMAKE_COMMAND} -E copy ${text_cargo_target}/release/libinflight_text.a ${text_archive}
  DEPENDS ${text_rust_sources} ${text_rust}/Cargo.toml ${text_rust}/Cargo.lock
  COMMENT "Building the Rust text library with cargo"
  VERBATIM)
add_custom_target(inflight_text_cargo DEPENDS ${text_archive})

add_library(inflight_text_archive STATIC IMPORTED GLOBAL)
set_target_properties(inflight_text_archive PROPERTIES IMPORTED_LOCATION ${text_archive})
add_dependencies(inflight_text_archive inflight_text_cargo)

# What `cargo rustc -- --print native-static-libs` lists, after the archive.
add_library(inflight_text_rust INTERFACE)
target_link_libraries(inflight_text_rust INTERFACE inflight_text_archive gcc_s util rt Threads::Threads m ${CMAKE_DL_LIBS})
add_dependencies(inflight_text_rust inflight_text_cargo)
