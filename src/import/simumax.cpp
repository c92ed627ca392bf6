// SimuMax's machine file. An entry is a share of `tflops`; the FLOP are those of its own counting
// (simu_tools/efficency_test): 2 b m n k of a product, 2 and 5 times b s^2 h (qk + v) of attention, without the mask.
#include "simumax.hpp"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "pipewright/base.hpp"

namespace pipewright::tables {
namespace {

using Json = nlohmann::json;

/// "b=1, m=4096, layout=TN": by name.
std::map<std::string, std::string> fields(const std::string& text) {
  std::map<std::string, std::string> result;
  std::string_view rest = text;
  while (!rest.empty()) {
    const auto end = rest.find(", ");
    const auto part = rest.substr(0, end);
    const auto equals = part.find('=');
    if (equals != std::string_view::npos) result[std::string(part.substr(0, equals))] = part.substr(equals + 1);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 2);
  }
  return result;
}

}  // namespace

SimuMax::SimuMax(const std::string& file) : name_("SimuMax " + std::filesystem::path(file).stem().string()) {
  const auto refuse = [&](const std::string& key, const std::string& why) { return UsageError({file, 0}, key, why); };
  Json ops;
  try {
    ops = Json::parse(read_file(file)).at("accelerator").at("op");
  } catch (const Json::exception&) {
    throw refuse("accelerator.op", "is not a machine file of SimuMax");
  }
  const auto each = [&](const char* op, const auto& use) {
    try {
      const double flop_per_ns = ops.at(op).at("tflops").get<double>() * 1e3;
      for (const auto& [shape, share] : ops.at(op).at("accurate_efficient_factor").items()) {
        const double ns_a_flop = 1 / (share.template get<double>() * flop_per_ns);
        const auto named = fields(shape);
        const auto number = [&](const char* name) {
          std::int64_t value = 0;
          const auto found = named.find(name);
          if (found == named.end() ||
              std::from_chars(found->second.data(), found->second.data() + found->second.size(), value).ec !=
                  std::errc())
            throw refuse(fmt::format("accelerator.op.{}", op), fmt::format("\"{}\" lacks {}", shape, name));
          return value;
        };
        use(named, number, ns_a_flop);
      }
    } catch (const Json::exception&) {
      throw refuse(fmt::format("accelerator.op.{}", op), "is missing or has no times by shape");
    }
  };
  each("matmul", [&](const auto& named, const auto& number, double ns_a_flop) {
    const std::int64_t m = number("m"), n = number("n"), k = number("k");
    const double flop = 2.0 * static_cast<double>(number("b") * m) * static_cast<double>(n) * static_cast<double>(k);
    products_.push_back({{m, n, k}, named.at("layout"), named.at("accumulate") == "True", flop * ns_a_flop});
  });
  for (const bool backward : {false, true}) {
    each(backward ? "sdp_bwd" : "sdp_fwd", [&](const auto& named, const auto& number, double ns_a_flop) {
      if (named.at("qkv_contiguous") != "True") return;
      const std::int64_t batch = number("batch"), s = number("seq_len"), heads = number("head_num"),
                         groups = number("kv_head_num"), qk = number("qk_head_dim"), v = number("v_head_dim");
      const double flop = (backward ? 5.0 : 2.0) * static_cast<double>(batch * heads * (qk + v)) *
                          static_cast<double>(s) * static_cast<double>(s);
      const char* way = backward ? "backward" : "forward";
      TimedAttention a;
      a.family = fmt::format("attention.{}{}.bf16", qk == v ? "" : "mla.", way);
      a.dims = {batch, s, s, heads, qk == v ? groups : qk, v};
      a.length = s;
      a.ns = flop * ns_a_flop;
      attention_.push_back(a);
    });
  }
}

}  // namespace pipewright::tables
