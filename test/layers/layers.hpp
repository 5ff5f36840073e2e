/// Checks the dependencies between layers (CONTRIBUTING.md, "Folders and layers") in the `#include`
/// lines of a source tree.
///
/// A layer is a folder; its public headers are rrfp/<layer>/. All that is not explicitly allowed is
/// a violation, also an unknown layer, a folder that no layer owns, and a quoted include of another
/// layer's file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace rrfp::testing {

/// One line for each violation: "FILE:LINE: what", the file relative to `root`, sorted.
std::vector<std::string> layer_violations(const std::filesystem::path& root);

/// Of the undefined symbols of an archive (as `nm` names them) those that are not the archive's
/// own, the C++ runtime's or plain memory and abort functions of libc. Clocks, threads, files,
/// sockets and random sources of the standard library count as foreign, too.
std::vector<std::string> foreign_symbols(const std::vector<std::string>& undefined,
                                         const std::vector<std::string>& defined);

}  // namespace rrfp::testing
