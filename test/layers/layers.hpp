/// Checks the dependencies between layers (CONTRIBUTING.md, "Folders and layers") in the `#include`
/// lines of a source tree.
///
/// A layer is a folder; its headers are rrfp/<layer>/, and those in folders of it are private. All
/// that is not explicitly allowed is a violation, also an unknown layer, a folder that no layer
/// owns, and a quoted include of another layer's file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace rrfp::testing {

/// One line for each violation: "FILE:LINE: what", the file relative to `root`, sorted.
std::vector<std::string> layer_violations(const std::filesystem::path& root);

/// One line for each fault of the list of installed headers, cmake/public-headers.txt: one that
/// does not exist, one that includes a header that is not listed, too many of them.
std::vector<std::string> public_header_violations(const std::filesystem::path& root);

/// Of the undefined symbols of an archive (as `nm` names them) those that are not the archive's
/// own, the C++ runtime's or plain memory and abort functions of libc. Clocks, threads, files,
/// sockets and random sources of the standard library count as foreign, too.
std::vector<std::string> foreign_symbols(const std::vector<std::string>& undefined,
                                         const std::vector<std::string>& defined);

}  // namespace rrfp::testing
