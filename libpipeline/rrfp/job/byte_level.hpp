/// Token ids of data without a tokenizer: one id per byte, one for the end of a document, and one
/// for the place of an image. A model for such data needs a vocabulary of at least `vocabulary`
/// ids. It replaces image tokens by the embeddings of an image.
#pragma once

#include <cstdint>

namespace rrfp::job::byte_level {

// Ids 0 to 255 are the byte values.
inline constexpr std::uint32_t image_token = 256;
inline constexpr std::uint32_t end_token = 257;
inline constexpr std::uint32_t vocabulary = 258;

}  // namespace rrfp::job::byte_level
