// Many requests in one continuously refilled batch; answers as JSON lines in the order of the requests.
#pragma once
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/common_options.h"
#include "cli/prompts_file.h"
#include "cli/text_model.h"

namespace inflight::cli {

// Every request is encoded and checked against the context before any runs; an error names the line. Sampling flags are the
// defaults of lines that do not name the field. Each answer is written as soon as all earlier ones are.
Result<int> answer_batch(const ModelArguments& model, const SamplingArguments& sampling, const std::string& folder, const TextArguments& text,
                         const std::string& path, std::vector<NumberedRequest> requests);

}  // namespace inflight::cli
