/// Calls the entry point of a fuzzer with each file of the folders that are given: a test of the
/// corpus with any compiler.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "promises.hpp"

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  try {
    for (int i = 1; i < argc; ++i) {
      std::vector<fs::path> files;
      for (const auto& entry : fs::directory_iterator{argv[i]}) files.push_back(entry.path());
      std::sort(files.begin(), files.end());
      for (const auto& file : files) {
        // Before the call: if it aborts, the last line names the file.
        std::printf("%s\n", file.c_str());
        std::fflush(stdout);
        std::ostringstream bytes;
        bytes << std::ifstream{file, std::ios::binary}.rdbuf();
        const auto text = bytes.str();
        LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
      }
      if (files.empty()) {
        std::fprintf(stderr, "%s: expected files, got none\n", argv[i]);
        return 1;
      }
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "replay: %s\n", e.what());
    return 1;
  }
}
