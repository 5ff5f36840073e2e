/// Opens pages in a headless Chromium. Without one the program ends with code 77: skipped.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include <png.h>
#include <catch2/catch.hpp>

#include "program.hpp"

namespace rrfp::test {

inline std::string browser() {
  for (const std::string name : {"chromium", "chromium-browser", "google-chrome"}) {
    auto found = run_program({"/bin/sh", "-c", "command -v " + name}).out;
    if (found.empty()) continue;
    found.pop_back();
    return found;
  }
  std::puts("skipped: no chromium, chromium-browser or google-chrome on this machine");
  std::exit(77);
}

/// Opens a page with further arguments, for at most one minute.
inline outcome open(const std::string& page, const std::vector<std::string>& arguments) {
  const scratch_folder profile;
  std::vector<std::string> all{browser(),
                               "--headless",
                               "--no-sandbox",
                               "--disable-gpu",
                               "--hide-scrollbars",
                               "--window-size=1500,2600",
                               "--enable-logging=stderr",
                               "--virtual-time-budget=3000",
                               "--user-data-dir=" + (profile / "chromium")};
  all.insert(all.end(), arguments.begin(), arguments.end());
  all.push_back("file://" + page);
  return program{all}.wait(std::chrono::seconds{60});
}

inline std::string console_of(const outcome& o) {
  std::istringstream in{o.err};
  std::string output;
  for (std::string line; std::getline(in, line);)
    if (line.find("CONSOLE") != std::string::npos) output += line + "\n";
  return output;
}

/// Of a PNG file: the share of the pixels that differ from the first one, the background.
inline double share_of_drawn_pixels(const std::string& file) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  REQUIRE(png_image_begin_read_from_file(&image, file.c_str()) != 0);
  image.format = PNG_FORMAT_RGBA;
  std::vector<std::array<png_byte, 4>> pixels(std::size_t{image.width} * image.height);
  REQUIRE(png_image_finish_read(&image, nullptr, pixels.data(), 0, nullptr) != 0);
  const auto drawn = std::count_if(pixels.begin(), pixels.end(),
                                   [&](const auto& pixel) { return pixel != pixels.front(); });
  return static_cast<double>(drawn) / static_cast<double>(pixels.size());
}

/// The page opens without a word on the console, and its picture, which stays in the build folder,
/// is not blank.
inline void require_good_picture(const std::string& page, const std::string& name) {
  const std::string artefacts = RRFP_ARTEFACTS;
  std::filesystem::create_directories(artefacts);
  const auto picture = artefacts + "/" + name;
  std::filesystem::remove(picture);
  const auto o = open(page, {"--screenshot=" + picture});
  INFO(o.err);
  REQUIRE(o.code == 0);
  CHECK(console_of(o) == "");
  REQUIRE(std::filesystem::exists(picture));

  // A rendered page has text and lines in at least one of a hundred pixels.
  CHECK(share_of_drawn_pixels(picture) > 0.01);
}

/// The text that a script, appended to the page, writes into #probe. With --dump-dom frames may
/// never be drawn, so requestAnimationFrame is a timer, also for what the page itself asks for.
inline std::string probe(const std::string& page, const std::string& script) {
  const scratch_folder folder;
  auto html = text_of(page);
  const std::string type = "<!DOCTYPE html>";
  REQUIRE(html.compare(0, type.size(), type) == 0);
  html.insert(type.size(), "<script>requestAnimationFrame = f => setTimeout(f, 0);</script>");
  html.insert(html.rfind("</body>"),
              "<pre id=\"probe\"></pre>\n<script>\n" + script + "</script>\n");
  const auto with_probe = folder / "probed.html";
  std::ofstream{with_probe} << html;
  const auto o = open(with_probe, {"--dump-dom"});
  INFO(o.err);
  REQUIRE(o.code == 0);
  CHECK(console_of(o) == "");
  const std::string mark = "<pre id=\"probe\">";
  const auto from = o.out.find(mark);
  REQUIRE(from != std::string::npos);
  return o.out.substr(from + mark.size(), o.out.find("</pre>", from) - from - mark.size());
}

/// Checks in windows of a laptop's and a phone's width that nothing lies beyond the right edge,
/// except in boxes that scroll. A frame acts as the window, because a browser's window has a
/// minimum width.
inline void require_fits_windows(const std::string& page) {
  std::string source;
  for (const char c : text_of(page))
    source += c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string{c};
  const scratch_folder folder;
  const auto frame = folder / "frame.html";
  for (const std::string width : {"1280", "390"}) {
    std::ofstream{frame} << "<!DOCTYPE html><html><body><iframe width=\"" << width
                         << "\" height=\"2000\" style=\"border:0\" srcdoc=\"" << source
                         << "\"></iframe></body></html>";
    CHECK(probe(frame, R"js(
const frame = document.querySelector('iframe');
frame.onload = () => {
  const root = frame.contentDocument.documentElement;
  document.getElementById('probe').textContent =
      frame.contentWindow.innerWidth + (root.scrollWidth > root.clientWidth ? ' too narrow' : ' fits');
};
)js") == width + " fits");
  }
}

}  // namespace rrfp::test
