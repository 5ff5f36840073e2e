/// A job file to begin with: the keys that a new job of its kind needs, each under its meaning from
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
  /// Files and folders to train on: of text (one that ends in .jsonl: all are), of lines with
  /// images, or of tokens for a pretrained model. Empty: text that every Debian machine has,
  /// made-up images, or a name that is still to be replaced.
  std::vector<std::string> data;
  /// The folder of the pretrained model; empty: a name that is still to be replaced.
  std::string model;
};

/// The text of the file. parse_job() accepts it; what data and model name is looked at later.
std::string job_template(const template_request& wanted);

}  // namespace rrfp::job
