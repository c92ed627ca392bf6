// Tables of others as a profile. docs/public-tables.md says how each was measured and what follows.
#include "pipewright/public_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>

#include "completion.hpp"
#include "csv_table.hpp"
#include "gemm_tables.hpp"
#include "robust_statistics.hpp"
#include "simumax.hpp"

namespace pipewright::tables {
namespace {

using profile::Origin;
using profile::Profile;
using profile::Sample;

/// The collections that are read of a GPU. Products: one framework and version for all GPUs, the newest that was
/// collected on all of them by the scripts as they stand. Long runs: the pairs of versions whose kernels agree.
struct Collection {
  std::string_view profile, system;
  struct Pair {
    std::string_view dtype, system, framework, long_version, short_version;
  };
  std::vector<Pair> throttles;
};
constexpr std::string_view framework = "trtllm", version = "1.3.0rc20", nccl = "2.29.2";

const Collection& collection(const std::string& profile_name) {
  using P = Collection::Pair;
  static const std::vector<P> gb200 = {P{"bfloat16", "gb200", "trtllm", "1.3.0rc17", "1.3.0rc20"},
                                       P{"fp8", "gb200", "trtllm", "1.3.0rc17", "1.3.0rc20"},
                                       P{"nvfp4", "gb200", "trtllm", "1.3.0rc17", "1.3.0rc20"}};
  static const std::vector<Collection> all = {
      {"b200-sxm",
       "b200_sxm",
       {P{"bfloat16", "b200_sxm", "vllm", "0.22.0", "0.24.0"}, gb200[1],
        P{"nvfp4", "b200_sxm", "vllm", "0.22.0", "0.24.0"}}},
      {"gb200-nvl72", "gb200", gb200},
      {"gb300-nvl72", "gb300", gb200},
      {"h200-sxm", "h200_sxm", {P{"bfloat16", "h200_sxm", "vllm", "0.22.0", "0.24.0"}}},
      {"h100-sxm", "h100_sxm", {P{"bfloat16", "h200_sxm", "vllm", "0.22.0", "0.24.0"}}}};
  std::vector<std::string> known;
  for (const auto& each : all) {
    if (each.profile == profile_name) return each;
    known.emplace_back(each.profile);
  }
  throw UsageError({"command line", 0}, "--gpu", "aiconfigurator's tables are not read for " + profile_name, known,
                   nearest_name(profile_name, known));
}

/// Shapes that are kept: the profile interpolates between them.
bool kept(const Product& p) {
  static const std::set<std::int64_t> tokens = {1024, 2048, 4096, 8192, 16384, 32768};
  static const std::set<std::int64_t> features = {512, 1024, 2048, 3072, 4096, 7168, 8192, 16384, 65536};
  return tokens.contains(p[0]) && features.contains(p[1]) && features.contains(p[2]);
}

class Builder : Completion {
 public:
  Builder(const Sources& sources, const Profile& measured, const profile::DataSheet& gpu)
      : Completion(measured, gpu), sources_(sources), from_(collection(gpu.profile)) {
    commit_ = read_file(sources.aiconfigurator + "/commit.txt").substr(0, 7);
    if (!sources.simumax.empty()) simumax_.emplace(sources.simumax);
  }

  Result build() {
    products();
    collectives();
    provenance();
    return finish();
  }

 private:
  std::string table(std::string_view what) const { return fmt::format("aiconfigurator {} {}", commit_, what); }

  Products collected(std::string_view system, std::string_view of, std::string_view at, std::string_view dtype) const {
    return read_products(sources_.aiconfigurator, std::string(system), std::string(of), std::string(at),
                         std::string(dtype));
  }

  Throttle throttle(std::string_view dtype) const {
    for (const auto& p : from_.throttles) {
      if (p.dtype != dtype) continue;
      const Throttle told(collected(p.system, p.framework, p.short_version, dtype),
                          collected(p.system, p.framework, p.long_version, dtype));
      const auto& kin = gpu_.under_load;
      return kin && collection(kin->than).system == p.system ? told.of(*kin, dtype == "bfloat16" ? "bf16" : "fp8")
                                                             : told;
    }
    return {{}, {}};
  }

  /// What other frameworks' collections of the same GPU say of the same product: half their spread and their bias.
  double frameworks_differ(const Products& ours, std::string_view dtype) const {
    std::vector<double> logs;
    for (const auto& [shape, run] : collected(from_.system, "sglang", "0.5.14", dtype)) {
      const auto found = ours.find(shape);
      if (found != ours.end() && kept(shape)) logs.push_back(std::log(run.ns / found->second.ns));
    }
    if (logs.empty()) return 0;
    const double bias = traces::median(logs);
    return std::hypot(bias, (traces::quantile(logs, 0.84) - traces::quantile(logs, 0.16)) / 2);
  }

  /// A B200's products in SimuMax's file over the same under full load by aiconfigurator.
  double tables_differ() {
    if (!simumax_) return 1;
    const auto of_b200 = collected("b200_sxm", framework, version, "bfloat16");
    const auto& b200 = collection("b200-sxm").throttles.front();
    const Throttle full(collected(b200.system, b200.framework, b200.short_version, b200.dtype),
                        collected(b200.system, b200.framework, b200.long_version, b200.dtype));
    std::vector<double> ratios;
    for (const auto& p : simumax_->products()) {
      const auto found = of_b200.find(p.shape);
      if (found == of_b200.end()) continue;
      const double cool = found->second.ns / full.within(found->second.ns);
      ratios.push_back(p.ns / (cool * full.full()));
    }
    compare("gemm.bf16, B200 under full load", "SimuMax over aiconfigurator", ratios);
    return ratios.empty() ? 1 : traces::median(ratios);
  }

  struct Precision {
    std::string_view dtype, throttle;            ///< theirs; whose long runs tell its clock
    std::string_view also;                       ///< another of theirs that holds this product and more; empty: none
    std::string_view plain, hopper;              ///< our family, and the derived one that it stands beside
    std::vector<std::string_view> variants;      ///< endings: wgrad, dgrad
    std::vector<std::string_view> quantisation;  ///< kernels that their time holds too, one each over tokens x k
    double of_theirs = 1;                        ///< the product over theirs of `dtype`
  };

  /// The products of one precision; variants as much longer as the derived ones are.
  void of_precision(const Precision& p, double tables_differ) {
    const Products all = collected(from_.system, framework, version, p.dtype);
    const Products also = p.also.empty() ? Products{} : collected(from_.system, framework, version, p.also);
    const Throttle clock = throttle(p.throttle);
    const std::string plain(p.plain), hopper(p.hopper);
    const double spread = std::hypot(frameworks_differ(all, p.dtype), log_of_90_percent(tables_differ));
    const std::string theirs =
        p.of_theirs == 1 ? std::string(p.dtype) : fmt::format("{} x {:.3f}", p.dtype, p.of_theirs);
    const std::string source =
        table(fmt::format("{} {} {}{}{}", framework, version, theirs, p.also.empty() ? "" : " or ", p.also));
    std::vector<double> ratios;
    std::map<std::string, std::vector<Sample>> made;
    for (auto [shape, run] : all) {
      if (!kept(shape)) continue;
      const auto alone = [&](double taken) {
        double ns = taken / clock.within(taken);
        for (const auto kernel : p.quantisation) ns -= derived_ns(std::string(kernel), {shape[0] * shape[2]});
        return ns;
      };
      double ns = alone(run.ns) * p.of_theirs;
      if (const auto other = also.find(shape); other != also.end()) {
        run.ns = std::min(run.ns, other->second.ns);
        ns = std::min(ns, alone(other->second.ns));
      }
      const std::vector<std::int64_t> dims = {shape[1], shape[0], shape[2]};
      if (ns < run.ns / 2) continue;  // their time is that of the quantisation
      const double ours = derived_ns(hopper, dims);
      ratios.push_back(ns / ours);
      made[plain].push_back({dims, ns, spread, 1, Origin::published, source});
      for (const auto variant : p.variants) {
        const std::string ending(variant);
        const std::string name = p.hopper == "gemm.bf16.tn" ? "gemm.bf16" + ending : plain + ending;
        const std::string alike = p.hopper == "gemm.bf16.tn" ? "gemm.bf16" + ending : hopper + ending;
        const double longer = derived_ns(alike, dims) / ours;
        made[name].push_back({dims, ns * longer, spread, 1, Origin::published, source});
      }
    }
    for (auto& [name, samples] : made) {
      std::ranges::sort(samples, {}, &Sample::dims);
      result_.profile.samples[name] = std::move(samples);
    }
    anchors_[plain] = ratios.empty() ? 1 : traces::median(ratios);
    spreads_[plain] = spread;
    if (p.dtype == "bfloat16") full_load_["bf16"] = {clock.full(), table("long runs")};
    if (p.throttle == "fp8") full_load_["fp8"] = {clock.full(), table("long runs")};
    compare(plain, source, std::move(ratios));
  }

  void products() {
    const double differ = blackwell() ? tables_differ() : 1;
    const std::vector<std::string_view> layouts = {".nn", ".nt", ".nt.acc_f32", ".nt.acc_bf16"},
                                        wgrads = {".acc_f32", ".acc_bf16", ".out_bf16"},
                                        tensorwise = {".split", ".acc_f32", ".acc_bf16", ".out_bf16"};
    of_precision({"bfloat16", "bfloat16", "", "gemm.bf16.tn", "gemm.bf16.tn", layouts, {}}, differ);
    if (!blackwell()) return;  // their FP8 on Hopper is another library's kernel
    // Per tensor their time holds more than a cast (1.5 times ours on an H200), by block the scales of every block, at
    // the same rate of the tensor cores: the product alone lasts no longer than either. The scales' price: twelve
    // products of a layer on a B300, quantized before, ms by tensor over MXFP8 (Transformer Engine d0067d0d,
    // docs/examples/gemm_profiling/gemm_profiling.rst).
    of_precision({"fp8_block", "fp8", "fp8", "gemm.fp8.tn", "gemm.fp8.tn", tensorwise, {"cast.fp8"}, fp8_over_mxfp8},
                 differ);
    of_precision({"fp8_block", "fp8", "", "gemm.mxfp8.tn", "gemm.fp8.tn", wgrads, {"cast.fp8"}}, differ);
    of_precision({"nvfp4", "nvfp4", "", "gemm.nvfp4.tn", "gemm.fp8.tn", wgrads, {"cast.fp8"}}, differ);
  }

  /// NCCL among 2 to 8 GPUs. Of an NVL72 four GPUs of a tray were measured; eight there are a B200's eight, times what
  /// four of the tray are to four of the B200.
  void collectives() {
    const auto read = [&](std::string_view system) {
      const CsvTable t(fmt::format("{}/data/{}/comm/nccl/{}/nccl_perf.csv", sources_.aiconfigurator, system, nccl));
      std::map<std::string, std::map<std::vector<std::int64_t>, std::vector<double>>> times;
      constexpr std::int64_t half = 2;  // bytes
      for (std::size_t i = 0; i < t.size(); ++i) {
        if (t.text(i, "nccl_dtype") != "half") continue;
        std::string op(t.text(i, "op_name"));
        if (op == "alltoall") op = "all_to_all";
        times[op][{std::llround(t.number(i, "num_gpus")), std::llround(t.number(i, "message_size")) * half}].push_back(
            t.number(i, "latency") * 1e6);
      }
      return times;
    };
    const auto here = read(from_.system);
    const auto whole = blackwell() ? read("b200_sxm") : here;
    const std::string source = table(fmt::format("nccl {}", nccl));
    constexpr std::int64_t tray = 4, node = 8;
    for (const auto& [op, times] : here) {
      const std::string name = op + ".nvlink";
      if (profile::find_family(name) == nullptr) continue;
      std::vector<Sample> samples;
      std::vector<double> ratios;
      for (const auto& [dims, list] : times) {
        const double ns = traces::median(list);
        samples.push_back({dims, ns, 0, static_cast<int>(list.size()), Origin::published, source});
        if (dims[1] >= (4 << 20)) ratios.push_back(ns / derived_ns(name, dims));
        if (dims[0] != tray || times.contains({node, dims[1]})) continue;
        const auto& b200 = whole.at(op);
        if (!b200.contains({node, dims[1]}) || !b200.contains(dims)) continue;
        const double as = ns / traces::median(b200.at(dims));
        samples.push_back({{node, dims[1]},
                           traces::median(b200.at({node, dims[1]})) * as,
                           std::abs(as - 1),
                           1,
                           Origin::published,
                           fmt::format("{}, a B200's x {:.3f}", source, as)});
      }
      std::ranges::sort(samples, {}, &Sample::dims);
      result_.profile.samples[name] = std::move(samples);
      compare(name + ", from 4 MiB on", source, std::move(ratios));
    }
  }

  void provenance() {
    auto& p = result_.profile;
    p.versions["aiconfigurator"] = read_file(sources_.aiconfigurator + "/commit.txt").substr(0, 40);
    if (simumax_) p.versions["simumax"] = simumax_->name();
    p.provenance.insert(
        p.provenance.begin(),
        fmt::format("public tables: pipewright import --aiconfigurator --gpu {} (docs/public-tables.md)",
                    gpu_.profile));
  }

  const Sources& sources_;
  const Collection& from_;
  std::optional<SimuMax> simumax_;
  std::string commit_;
};

}  // namespace

Result import_tables(const Sources& sources, const Profile& measured, const profile::DataSheet& gpu) {
  return Builder(sources, measured, gpu).build();
}

Profile published_only(const Profile& all) {
  Profile p = all;
  p.origin = Origin::published;
  for (auto& [name, samples] : p.samples)
    std::erase_if(samples, [](const Sample& s) { return s.origin != Origin::published; });
  std::erase_if(p.samples, [](const auto& each) { return each.second.empty(); });
  p.links.clear();
  p.clocks.clear();
  p.scalars.clear();
  p.interpolation.clear();
  p.prepare();
  return p;
}

std::string text(const Result& result) {
  Table table({"kernels", "shapes", "median", "5 %", "95 %", "table"});
  for (const auto& c : result.comparisons) {
    table.add({c.family, fmt::format("{}", c.shapes), fmt::format("{:.3f}", c.median), fmt::format("{:.3f}", c.low),
               fmt::format("{:.3f}", c.high), c.table});
  }
  return fmt::format("{}: published times over what the profile would have said without them\n\n{}",
                     result.profile.name, table.text());
}

}  // namespace pipewright::tables
