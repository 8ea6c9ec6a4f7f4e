#include "cli/version.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/thread_pool.h"
#include "kernels/dispatch.h"
#include "text/library.h"

namespace inflight::cli {

std::string version_text() {
#if defined(__clang__)
  const std::string compiler = fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  const std::string compiler = fmt::format("gcc {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
  const Result<const kernels::Kernels*> chosen = kernels::choose();
  std::string text = fmt::format("inflight {}\ncompiler: {}\ninstruction set: {} (available: {})\nthreads: {}\ntext library: {}\n", INFLIGHT_VERSION, compiler,
                                 chosen ? (*chosen)->isa : "none: " + chosen.error().message, fmt::join(kernels::available(), " "), usable_threads(), text::library_versions());
  return text;
}

}  // namespace inflight::cli
