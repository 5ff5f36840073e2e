/// A job file to start from: the keys that a new job of its kind needs, each below its meaning from
/// the reference.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rrfp::job {

enum class template_kind : std::uint8_t { text, images, pretrained };

/// "text", "images" or "pretrained".
std::optional<template_kind> template_kind_of(std::string_view name);

struct template_request {
  template_kind kind = template_kind::text;
  /// Files and folders to train on: text, or documents as JSON lines; JSON lines with images; or
  /// token files for a pretrained model. Empty: text that every Debian machine has, synthetic
  /// images, or a placeholder.
  std::vector<std::string> data;
  /// Text only: whether `data` are JSON lines.
  bool documents = false;
  /// The folder of the pretrained model; empty: a placeholder.
  std::string model;
};

/// The text of the file. It is valid once the files that it names exist.
std::string job_template(const template_request& wanted);

}  // namespace rrfp::job
