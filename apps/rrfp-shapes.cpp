#include <CLI/CLI.hpp>

#include <string>

#include <rrfp/data/shapes.hpp>

#include "common/checks.hpp"
#include "common/console.hpp"
#include "common/program.hpp"

namespace {

using namespace rrfp;

constexpr std::uint32_t samples_max = 10'000'000;
constexpr std::uint32_t patch_max = 1024;

struct options {
  std::string folder;
  std::uint32_t samples = 1000;
  std::uint64_t seed = 1;
  std::uint32_t patch = 8;
};

int run(int argc, char** argv) {
  CLI::App app{
      "Writes a small data set of pictures with captions, such as \"a red circle, two\n"
      "blue squares\", for data.images of a job"};
  app.set_version_flag("--version", "rrfp-shapes " RRFP_VERSION);
  app.footer(
      "The same arguments give the same files on every machine. A job with\n"
      "data.shapes = N and data.shapes_seed = S draws the same samples in memory.\n"
      "Exit codes: 0 done, 1 internal error or an output that could not be written,\n"
      "2 bad input.");
  options wanted;
  app.add_option("folder", wanted.folder,
                 "The folder for train.jsonl and images/*.png; it must\n"
                 "be empty or not exist")
      ->required();
  app.add_option("--samples", wanted.samples, "Number of samples")
      ->check(apps::between(1U, samples_max))
      ->capture_default_str();
  app.add_option("--seed", wanted.seed, "Seed of the pictures and captions")
      ->check(apps::between(std::uint64_t{0}, std::uint64_t{INT64_MAX}))
      ->capture_default_str();
  app.add_option("--patch", wanted.patch,
                 "Patch size of the model in pixels; the sides of all\n"
                 "pictures are multiples of it")
      ->check(apps::between(1U, patch_max))
      ->capture_default_str();
  if (const auto over = apps::parse_arguments(app, argc, argv)) return *over;
  if (auto made = data::make_shapes_folder(wanted.folder); !made)
    return apps::end_with(made.failure());
  if (auto written = data::write_shapes(wanted.folder, wanted.seed, wanted.samples, wanted.patch);
      !written)
    return apps::end_with({written.message(), error_kind::failed});
  apps::print("{} samples: {}/train.jsonl\n", wanted.samples, wanted.folder);
  return exit_done;
}

}  // namespace

int main(int argc, char** argv) { rrfp::apps::run_program("rrfp-shapes", argc, argv, &run); }
