/// Text from outside in messages.
#include <catch2/catch.hpp>

#include <rrfp/base/printable.hpp>

namespace rrfp {

TEST_CASE("A printable text stays as it is") {
  CHECK(printable("").empty());
  CHECK(printable("a \"key\" = \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80") ==
        "a \"key\" = \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
}

TEST_CASE("Control characters and invalid bytes become question marks") {
  using namespace std::string_view_literals;
  CHECK(printable("a\nb\tc\x1b[31m\x7f\0d"sv) == "a?b?c?[31m??d");
  // A lone continuation, an overlong form, a surrogate, a number too large, a cut character.
  CHECK(printable("\x80 \xc0\xaf \xed\xa0\x80 \xf4\x90\x80\x80 \xe2\x82") == "? ?? ??? ???? ??");
}

TEST_CASE("A long text is cut between two characters") {
  CHECK(printable("abcd", 4) == "abcd");
  CHECK(printable("abcde", 4) == "abcd...");
  CHECK(printable("abc\xc3\xa9", 4) == "abc...");
  CHECK(printable(std::string(100, 'x')).size() == 83);
}

}  // namespace rrfp
