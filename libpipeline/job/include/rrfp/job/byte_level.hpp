/// Bytes as tokens: the ids that text with ends and images is made of, where no tokenizer is given.
/// A model on such data knows `vocabulary` ids at least; where the image token stands, it puts the
/// rows that it makes of an image.
#pragma once

#include <cstdint>

namespace rrfp::job::byte_level {

// 0 to 255 are the bytes.
inline constexpr std::uint32_t image_token = 256;
inline constexpr std::uint32_t end_token = 257;
inline constexpr std::uint32_t vocabulary = 258;

}  // namespace rrfp::job::byte_level
