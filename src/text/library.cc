#include "text/library.h"

namespace inflight::text {

std::string library_versions() { return inflight_text_versions(); }

}  // namespace inflight::text
