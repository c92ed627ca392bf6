// The page as a file: it stands alone, says what it shows in escaped text, and what it packs comes out again. What a
// browser makes of it: page/page_test.py.
#include "pipewright/page.hpp"

#include <doctest/doctest.h>
#include <zlib.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "fixture.hpp"
#include "pipewright/report.hpp"

namespace page_test {

using namespace pipewright;
using namespace pipewright::report;
using nlohmann::json;

namespace {

Page page_of(const predict::Prediction& prediction, const predict::Run& run) {
  Page page{prediction.scenario, "simulate", {{"simulate", simulate_json(prediction)}}, {}, {}};
  page.runs.push_back({"simulated", &prediction, &run, {}});
  return page;
}

/// The pack's bytes behind their length, read by hand.
struct Unpacked {
  json head;
  std::string columns;

  explicit Unpacked(const std::string& text) {
    const std::string mark = "id=\"pack\">";
    const auto from = text.find(mark) + mark.size(), to = text.find('<', from);
    std::string bytes;
    std::uint32_t group = 0, bits = 0;
    for (const char c : text.substr(from, to - from)) {
      const auto digit = std::string_view("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/").find(c);
      if (digit == std::string_view::npos) continue;
      group = group << 6U | static_cast<std::uint32_t>(digit);
      if ((bits += 6) >= 8) bytes += static_cast<char>(group >> (bits -= 8) & 255U);
    }
    std::string all(std::size_t{1} << 22U, '\0');
    uLongf size = all.size();
    REQUIRE(uncompress(reinterpret_cast<Bytef*>(all.data()), &size, reinterpret_cast<const Bytef*>(bytes.data()),
                       bytes.size()) == Z_OK);
    std::uint32_t length = 0;
    for (unsigned i = 0; i < 4; ++i) length |= static_cast<std::uint32_t>(static_cast<unsigned char>(all[i])) << 8 * i;
    head = json::parse(all.substr(4, length));
    columns = all.substr(4 + length, size - 4 - length);
  }

  std::vector<std::int64_t> column(const std::string& name, bool is_signed) const {
    std::vector<std::int64_t> out;
    std::uint64_t value = 0, shift = 0;
    for (const char c : columns.substr(head["columns"][name][0], head["columns"][name][1])) {
      value |= static_cast<std::uint64_t>(c & 127) << shift;
      shift += 7;
      if ((c & 128) != 0) continue;
      out.push_back(is_signed ? static_cast<std::int64_t>(value >> 1U) ^ -static_cast<std::int64_t>(value & 1U)
                              : static_cast<std::int64_t>(value));
      value = shift = 0;
    }
    CHECK(out.size() == head["columns"][name][2].get<std::size_t>());
    return out;
  }
};

}  // namespace

TEST_CASE("the page stands alone and escapes what it shows") {
  auto prediction = small_prediction();
  prediction.scenario = "two <b>ranks</b> & \"more\" {{pack}}";
  const auto run = small_run();
  const std::string text = html(page_of(prediction, run));
  CHECK(text.find("<title>two &lt;b&gt;ranks&lt;/b&gt; &amp; &quot;more&quot; {{pack}}</title>") != std::string::npos);
  CHECK(text.find("src=") == std::string::npos);
  CHECK(text.find("@import") == std::string::npos);
  CHECK(text.find("default-src 'none'") != std::string::npos);
  for (auto at = text.find("http"); at != std::string::npos; at = text.find("http", at + 1)) {
    const auto rest = text.substr(at, 40);
    CHECK_MESSAGE((rest.starts_with("http-equiv") || rest.starts_with("http://www.w3.org/2000/svg")), rest);
  }
  CHECK(html(page_of(prediction, run)) == text);
}

TEST_CASE("what is packed comes out again: the JSON as it is, every slice at its time") {
  const auto prediction = small_prediction();
  const auto run = small_run();
  const Unpacked pack(html(page_of(prediction, run)));
  CHECK(pack.head["results"]["simulate"] == json::parse(simulate_json(prediction)));
  const auto& timeline = pack.head["runs"][0]["timeline"];
  std::vector<std::int64_t> starts, ends;
  for (std::size_t lane = 0; lane < timeline["lanes"].size(); ++lane) {
    if (timeline["lanes"][lane][1] == "host") continue;
    const std::string of = "R0.L" + std::to_string(lane) + ".";
    const auto gap = pack.column(of + "gap", true), length = pack.column(of + "ns", false);
    std::int64_t last = 0;
    for (std::size_t i = 0; i < gap.size(); ++i) {
      starts.push_back(last + gap[i]);
      ends.push_back(last = starts.back() + length[i]);
    }
  }
  std::vector<std::int64_t> wanted;
  const auto& graph = run.timeline.graph;
  for (std::uint32_t node = 0; node < graph.size(); ++node)
    if (graph.labels[node].kind == timeline::NodeKind::kernel ||
        graph.labels[node].kind == timeline::NodeKind::transfer)
      wanted.push_back(run.timeline.times.end[node]);
  std::sort(ends.begin(), ends.end());
  std::sort(wanted.begin(), wanted.end());
  CHECK(ends == wanted);
}

}  // namespace page_test
