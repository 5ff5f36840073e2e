/// A file system of a few kilobytes.
#pragma once

#include <sys/mount.h>

#include <filesystem>
#include <string>
#include <utility>

#include <catch2/catch.hpp>

namespace rrfp::test {

class tiny_disk {
 public:
  tiny_disk(std::string at, const char* options) : at_(std::move(at)) {
    std::filesystem::create_directory(at_);
    mounted_ = ::mount("tmpfs", at_.c_str(), "tmpfs", 0, options) == 0;
  }
  tiny_disk(const tiny_disk&) = delete;
  tiny_disk& operator=(const tiny_disk&) = delete;
  ~tiny_disk() {
    if (mounted_) ::umount2(at_.c_str(), MNT_DETACH);
  }
  bool is_mounted() const {
    if (!mounted_) WARN("skipped: no tmpfs can be mounted here");
    return mounted_;
  }

 private:
  std::string at_;
  bool mounted_ = false;
};

}  // namespace rrfp::test
