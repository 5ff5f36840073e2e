#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <rrfp/actors/checkpoint_tensors.hpp>
#include <rrfp/actors/job_checkpoint.hpp>
#include <rrfp/hugging_face/config.hpp>
#include <rrfp/job/job.hpp>

#include "../common/console.hpp"
#include "../common/output_file.hpp"
#include "../common/program.hpp"
#include "commands.hpp"
#include "exported_model.hpp"

namespace rrfp::apps {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view config_name = "config.json";
/// Extensions of the files that are copied from the base model; none of them holds weights.
constexpr std::array<std::string_view, 4> companion_kinds{".json", ".txt", ".model", ".jinja"};

result<checkpoint::found_checkpoint> find_checkpoint(const std::string& path) {
  std::error_code why;
  if (!fs::exists(path, why))
    return error{path + ": expected the folder of a checkpoint, or of several; " +
                 (why ? why.message() : "it does not exist")};
  if (fs::exists(fs::path{path} / checkpoint::manifest_name, why))
    return checkpoint::verify(path, checkpoint::verification::checksums);
  auto searched = checkpoint::find_newest(path, checkpoint::verification::checksums);
  if (!searched) return searched.failure();
  for (const auto& line : searched->skipped) complain("skipped: {}", line);
  if (searched->newest) return *std::move(searched->newest);
  return error{
      path +
      ": expected the folder of a checkpoint, or of several; found no usable checkpoint in it"};
}

result<job::model_options> model_of(const checkpoint::found_checkpoint& from) {
  auto model = job::model_of(from.contents.identity);
  if (!model) return within(from.folder, model.failure());
  if (auto can = hugging_face::check_expressible(*model); !can)
    return within(from.folder, can.failure());
  return model;
}

/// The text of config.json.
result<std::string> config_of(const job::model_options& model, const export_options& options) {
  if (options.base.empty()) return hugging_face::to_config(model, options.dtype);
  return hugging_face::config_with_dtype(options.base, model, options.dtype);
}

/// The pretrained model that the run started from.
struct base_model {
  std::shared_ptr<const safetensors::collection> weights;  ///< null without --base
  std::vector<fs::path> companions;                        ///< files to copy beside the weights
};

result<base_model> open_base(const std::string& folder) {
  base_model base;
  if (folder.empty()) return base;
  auto weights = safetensors::collection::open(folder);
  if (!weights) return weights.failure();
  base.weights = std::make_shared<const safetensors::collection>(std::move(*weights));
  std::error_code failed;
  for (fs::directory_iterator at{folder, failed}; !failed && at != fs::directory_iterator{};
       at.increment(failed)) {
    const auto name = at->path().filename().string();
    const bool is_companion =
        std::any_of(companion_kinds.begin(), companion_kinds.end(),
                    [&](auto kind) { return at->path().extension() == kind; });
    if (is_companion && at->is_regular_file() && name != config_name &&
        !name.ends_with(".index.json"))
      base.companions.push_back(at->path());
  }
  if (failed) return error{folder + ": cannot be read: " + failed.message()};
  return base;
}

/// Error: --base is not the model that the run started from, so untrained weights would be wrong.
status check_base(const checkpoint::found_checkpoint& from, const export_options& options,
                  const base_model& base) {
  if (base.weights == nullptr) return success();
  const auto given = actors::fingerprint_of(*base.weights);
  for (const auto& s : from.contents.identity)
    if (s.key == "model.pretrained" && s.value != "none" && s.value != given)
      return error{
          fmt::format("--base {}: expected the weights of model.pretrained, {} in {}, got {}",
                      options.base, s.value, from.folder, given)};
  return success();
}

/// Error: the export would overwrite a file, or mix with a folder of checkpoints.
status check_free(const export_options& options, const base_model& base) {
  const auto has = [&](const fs::path& name) {
    std::error_code unknown;
    return fs::exists(fs::path{options.out} / name, unknown);
  };
  if (has(checkpoint::manifest_name) || has(".lock"))
    return error{options.out + ": expected a folder for a model, got a folder of checkpoints"};
  std::vector<fs::path> outputs{config_name};
  for (const auto& c : base.companions) outputs.push_back(c.filename());
  for (const auto& name : outputs)
    if (has(name))
      return error{options.out + ": expected a folder without " + name.string() + ", found it"};
  return success();
}

void remove_written(const export_options& options, const base_model& base) {
  std::error_code ignored;
  fs::remove(fs::path{options.out} / config_name, ignored);
  for (const auto& c : base.companions) fs::remove(fs::path{options.out} / c.filename(), ignored);
}

status copy_into(const std::vector<fs::path>& files, const std::string& folder) {
  for (const auto& from : files) {
    std::error_code failed;
    const auto to = fs::path{folder} / from.filename();
    fs::copy_file(from, to, failed);
    if (failed) return error{to.string() + ": cannot write: " + failed.message()};
  }
  return success();
}

}  // namespace

int export_command(const export_options& options) {
  const auto from = find_checkpoint(options.checkpoint);
  if (!from) return end_with(from.failure());
  const auto saved = actors::open_tensors(*from);
  if (!saved) return end_with(saved.failure());
  const auto base = open_base(options.base);
  if (!base) return end_with(base.failure());
  if (auto same = check_base(*from, options, *base); !same) return end_with(same.failure());
  const auto trained = model_of(*from);
  if (!trained) return end_with(trained.failure());
  const auto config = config_of(*trained, options);
  if (!config) return end_with(config.failure());
  if (auto free = check_free(options, *base); !free) return end_with(free.failure());
  auto model =
      exported_model::create(*saved, base->weights, hugging_face::unused_parameters(*trained),
                             from->contents.step, options);
  if (!model) return end_with(model.failure());
  // The weights are written last: a folder that has them is complete.
  auto written = copy_into(base->companions, options.out);
  if (written)
    written = io::write_atomically((fs::path{options.out} / config_name).string(), *config);
  if (written) written = model->write();
  if (!written) {
    remove_written(options, *base);
    return end_with({written.message(), error_kind::failed});
  }
  print("{}, written at {}: {} tensors, {} bytes in {} file{} of {}\n", from->folder,
        from->contents.written_at, model->tensors(), model->bytes(), model->files(),
        model->files() == 1 ? "" : "s", options.out);
  if (base->weights)
    print("{}: copied {} tensors and {} files\n", options.base, model->copied_from_base(),
          base->companions.size());
  return exit_done;
}

}  // namespace rrfp::apps
