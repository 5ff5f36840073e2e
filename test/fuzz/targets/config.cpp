/// config.json of transformers.
#include <rrfp/hugging_face/config.hpp>

#include "promises.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace rrfp;
  const auto model = hugging_face::parse_config(fuzz::text_of(data, size), "config.json");
  if (!model) {
    fuzz::promise_error(model.failure(), "config.json");
    return 0;
  }
  if (const auto can = hugging_face::check_expressible(*model); !can) {
    fuzz::promise_line(can.message());
    return 0;
  }
  const auto written = hugging_face::to_config(*model);
  const auto again = hugging_face::parse_config(written, "again.json");
  fuzz::promise(again.ok(), "a model is read as it was written", again ? "" : again.message());
  fuzz::promise(hugging_face::to_config(*again) == written, "a model is read as it was written",
                written);
  return 0;
}
