// SimuMax's machine file. An entry is a share of `tflops`; the FLOP are those of its own counting
// (simu_tools/efficency_test): 2 b m n k of a product.
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
}

}  // namespace pipewright::tables
