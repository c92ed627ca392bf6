// Published tables as a profile: with made-up tables whose truth is known, and theirs beside ours where both measured.
#include "pipewright/public_tables.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "../draws.hpp"

namespace public_tables_test {

using namespace pipewright;
using namespace pipewright::profile;

namespace {

const Profile& h200() {
  static const Profile loaded = load("../../profiles/h200-sxm.json", {"test", 0});
  return loaded;
}

/// Tables of a GPU on which every product runs at `rate`, repeated for a second `full` times as long; a short run of
/// more than half a millisecond is throttled too. A cast costs what the derived profile says.
class Tables {
 public:
  static constexpr double rate = 1.5e6, full = 1.25;  // FLOP/ns

  explicit Tables(const std::string& name) : root_(std::filesystem::temp_directory_path() / ("pipewright-" + name)) {
    std::filesystem::remove_all(root_);
    write("commit.txt", "0123456789abcdef\n");
    static const std::string short_runs = products(false), long_runs = products(true);
    for (const char* system : {"b200_sxm", "gb200", "gb300"}) {
      const std::string gemm = fmt::format("data/{}/gemm/", system);
      write(gemm + "trtllm/1.3.0rc20/gemm_perf.csv", short_runs);
      write(gemm + "trtllm/1.3.0rc17/gemm_perf.csv", long_runs);
      write(gemm + "trtllm/1.3.0rc15/gemm_perf.csv", long_runs);
      write(gemm + "vllm/0.24.0/gemm_perf.csv", short_runs);
      write(gemm + "vllm/0.22.0/gemm_perf.csv", long_runs);
      write(gemm + "sglang/0.5.14/gemm_perf.csv", short_runs);
      write(fmt::format("data/{}/comm/nccl/2.29.2/nccl_perf.csv", system), collectives(system));
    }
  }
  ~Tables() { std::filesystem::remove_all(root_); }
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;

  std::string folder() const { return root_.string(); }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  static double cool_ns(double m, double n, double k) { return 2 * m * n * k / rate; }

 private:
  static std::string products(bool long_run) {
    static const Profile derived = derive(h200(), data_sheet("gb200-nvl72"));
    std::string text = long_run ? "gemm_dtype,m,n,k,latency,power,power_limit\n" : "gemm_dtype,m,n,k,latency\n";
    for (const char* dtype : {"bfloat16", "fp8", "fp8_block", "nvfp4"})
      for (const double m : {256, 1024, 2048, 4096, 8192, 16384, 32768})
        for (const double n : {512, 1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 65536})
          for (const double k : {512, 1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 65536}) {
            const double cool = cool_ns(m, n, k);
            double ns = cool * (long_run || cool > 512e3 ? full : 1);
            if (std::string(dtype) == "fp8") ns *= k == 8192 ? 0.8 : 1.3;
            if (std::string(dtype) == "nvfp4") ns += derived.time({"cast.fp8", {std::llround(m * k)}})->ns;
            text += fmt::format("{},{},{},{},{:.9g}{}\n", dtype, m, n, k, ns / 1e6, long_run ? ",1190,1200" : "");
          }
    return text;
  }
  static std::string collectives(const std::string& system) {
    const bool tray = system != "b200_sxm";
    std::string text = "nccl_dtype,op_name,num_gpus,message_size,latency\n";
    for (const char* op : {"all_gather", "reduce_scatter", "all_reduce", "alltoall"})
      for (const int ranks : {2, 4, 8})
        for (std::int64_t elements = 1 << 10; elements <= 1 << 28; elements *= 4)
          if (!tray || ranks < 8)
            text += fmt::format("half,{},{},{},{}\n", op, ranks, elements,
                                (tray ? 1.1 : 1.0) * ranks * (10 + static_cast<double>(elements) / 1e5) / 1e3);
    return text;
  }

  std::filesystem::path root_;
};

/// What they make of a GPU, imported once.
const Profile& imported(const std::string& gpu) {
  static const Tables made("tables");
  static std::map<std::string, Profile> known;
  if (!known.contains(gpu))
    known.emplace(gpu, tables::import_tables({made.folder(), ""}, h200(), data_sheet(gpu)).profile);
  return known.at(gpu);
}

}  // namespace

TEST_CASE("a product is taken cool, however long its short run was; its kin follow as on the measured GPU") {
  const Profile& p = imported("gb200-nvl72");
  const Profile derived = derive(h200(), data_sheet("gb200-nvl72"));
  for (const std::int64_t size : {1024, 4096, 8192}) {
    const auto d = static_cast<double>(size);
    const auto time = p.time({"gemm.bf16.tn", {size, size, size}});
    CHECK(time->ns == doctest::Approx(Tables::cool_ns(d, d, d)).epsilon(0.001));
    CHECK(time->origin == Origin::published);
    CHECK(time->note.find("aiconfigurator 0123456") != std::string::npos);
    const auto ratio = [&](const Profile& of) {
      return of.time({"gemm.bf16.nt.acc_f32", {size, size, size}})->ns /
             of.time({"gemm.bf16.tn", {size, size, size}})->ns;
    };
    CHECK(ratio(p) == doctest::Approx(ratio(derived)));
  }
  // The cast in front of it is not the product's.
  CHECK(p.time({"gemm.nvfp4.tn", {2048, 2048, 2048}})->ns ==
        doctest::Approx(Tables::cool_ns(2048, 2048, 2048)).epsilon(0.01));
}

TEST_CASE("an FP8 product lasts no longer than either of the tables that hold it and more") {
  const Profile& p = imported("gb200-nvl72");
  const auto cast = [&](std::int64_t k) { return p.time({"cast.fp8", {2048 * k}})->ns; };
  const auto product = [&](const char* family, std::int64_t k) { return p.time({family, {2048, 2048, k}})->ns; };
  const auto table = [](std::int64_t k) { return Tables::cool_ns(2048, 2048, static_cast<double>(k)); };
  CHECK(product("gemm.fp8.tn", 8192) == doctest::Approx(0.8 * table(8192) - cast(8192)).epsilon(0.001));
  // Scales of blocks have their price (6.812 ms of products by tensor, 7.161 by blocks of 32).
  CHECK(product("gemm.fp8.tn", 4096) == doctest::Approx(6.812 / 7.161 * (table(4096) - cast(4096))).epsilon(0.001));
  // Where the table by blocks takes longer than FP8's and that price: as cuBLAS' beside it.
  CHECK(product("gemm.mxfp8.tn", 4096) == doctest::Approx(table(4096) - cast(4096)).epsilon(0.001));
  CHECK(product("gemm.mxfp8.tn", 8192) ==
        doctest::Approx(7.161 / 6.812 * (0.8 * table(8192) - cast(8192))).epsilon(0.001));
}

TEST_CASE("a cast to MXFP8 takes longer than its bytes, as it was measured") {
  const Profile& p = imported("b200-sxm");
  const double mxfp8 = p.time({"quantize.mxfp8", {8192, 8192}})->ns;
  CHECK(mxfp8 == doctest::Approx(52340).epsilon(0.001));
  CHECK(p.time({"quantize.nvfp4", {8192, 8192}})->ns == doctest::Approx(mxfp8 * 2.689 / 1.823).epsilon(0.001));
}

TEST_CASE("a large NVFP4 product is cuBLAS', where somebody told of it and the table's is slower") {
  const auto ns = [&](const char* gpu, const std::string& family, std::int64_t size) {
    const Profile& p = imported(gpu);
    return p.time({family, {size, size, size}})->ns;
  };
  // Of a B300: 0.526 of MXFP8, from half a TFLOP on. Of a B200 (and a GB200, 1.073 times as fast): a cube's time.
  CHECK(ns("gb300-nvl72", "gemm.nvfp4.tn", 8192) ==
        doctest::Approx(3.764 / 7.161 * ns("gb300-nvl72", "gemm.mxfp8.tn", 8192)).epsilon(0.001));
  CHECK(ns("gb300-nvl72", "gemm.nvfp4.tn", 4096) > 0.9 * ns("gb300-nvl72", "gemm.mxfp8.tn", 4096));
  CHECK(ns("b200-sxm", "gemm.nvfp4.tn", 8192) == doctest::Approx(205e3).epsilon(0.001));
  CHECK(ns("gb200-nvl72", "gemm.nvfp4.tn", 8192) == doctest::Approx(205e3 / 1.073).epsilon(0.001));
  CHECK(ns("b200-sxm", "gemm.nvfp4.tn", 2048) > 0.9 * ns("b200-sxm", "gemm.mxfp8.tn", 2048));
}

TEST_CASE("the shipped profiles of Blackwell are what their tables make of the H200 as it is now") {
  const auto shipped = [](const char* name) {
    return load(std::string("../../profiles/") + name + ".json", {"test", 0});
  };
  const auto check = [&](const char* name, const std::vector<Profile>& told) {
    CAPTURE(name);
    const auto again = tables::complete(h200(), data_sheet(name), told).profile;
    const auto is = shipped(name);
    REQUIRE(again.samples.size() == is.samples.size());
    for (const auto& [family, samples] : again.samples) {
      CAPTURE(family);
      REQUIRE(is.samples.at(family).size() == samples.size());
      for (std::size_t i = 0; i < samples.size(); ++i) {
        CHECK(is.samples.at(family)[i].ns == doctest::Approx(samples[i].ns).epsilon(2e-3));
        CHECK(std::abs(is.samples.at(family)[i].spread - samples[i].spread) < 2e-3);
      }
    }
  };
  check("gb200-nvl72", {shipped("gb200-nvl72")});
  if (test::few()) return;
  for (const char* name : {"b200-sxm", "gb300-nvl72"}) check(name, {shipped(name)});
  check("b300-sxm", {shipped("gb300-nvl72"), shipped("b200-sxm")});
}

TEST_CASE("attention on Blackwell is cuDNN's where it was published; other heads follow by their length") {
  const Profile& p = imported("gb200-nvl72");
  const Profile derived = derive(h200(), data_sheet("gb200-nvl72"));
  CHECK(p.time({"attention.forward.bf16", {2, 8192, 8192, 64, 8, 128}})->ns == doctest::Approx(1397e3));
  CHECK(p.time({"attention.backward.bf16", {2, 4096, 4096, 64, 8, 128}})->ns == doctest::Approx(1198e3));
  CHECK(p.time({"attention.mla.forward.bf16", {2, 4096, 4096, 128, 192, 128}})->ns == doctest::Approx(977e3));
  // By cuDNN 9.13 on a GB300: 8192 tokens in 1470 and 4865 us with the call's 137 and 160.
  CHECK(p.scalars.at("attention.forward.before_cudnn_9_17").value > 1.05);
  CHECK(p.scalars.at("attention.forward.before_cudnn_9_17").value < (1470 - 137) / 1185.0);
  CHECK(p.scalars.at("attention.backward.before_cudnn_9_17").value > 1.12);
  CHECK(p.scalars.at("attention.backward.before_cudnn_9_17").value < (4865 - 160) / 3832.0);
  const double factor = 1397e3 / derived.time({"attention.forward.bf16", {2, 8192, 8192, 64, 8, 128}})->ns;
  for (const auto& s : derived.samples.at("attention.forward.bf16")) {
    if (s.dims[1] != 8192) continue;
    CHECK(p.time({"attention.forward.bf16", s.dims})->ns == doctest::Approx(factor * s.ns).epsilon(0.001));
  }
}

TEST_CASE("windows on Blackwell are cuDNN's; what sinks add is an H200's") {
  const Profile& p = imported("gb200-nvl72");
  CHECK(p.time({"attention.window.forward.bf16", {2, 8192, 8192, 64, 8, 64, 1024}})->ns == doctest::Approx(423e3));
  CHECK(p.time({"attention.window.backward.bf16", {2, 4096, 4096, 128, 128, 64, 128}})->ns == doctest::Approx(465e3));
  // The same benchmark's H200 (9.19) beside our capture, which has windows of 512 and 2048: 2048 to 16384 tokens.
  const double forward_us[] = {166, 358, 738, 1499}, backward_us[] = {488, 1042, 2149, 4392};
  for (int i = 0; i < 4; ++i) {
    const std::int64_t length = std::int64_t{2048} << i;
    const std::vector<std::int64_t> dims = {2, length, length, 64, 8, 64, 1024};
    CHECK(h200().time({"attention.window.forward.bf16", dims})->ns ==
          doctest::Approx(1e3 * forward_us[i]).epsilon(0.2));
    CHECK(h200().time({"attention.window.backward.bf16", dims})->ns ==
          doctest::Approx(1e3 * backward_us[i]).epsilon(0.21));
  }
  for (const std::int64_t window : {128, 8192}) {
    const auto added = [&](const Profile& of) {
      const std::vector<std::int64_t> dims = {1, 8192, 8192, 64, 8, 64};
      std::vector<std::int64_t> windowed = dims;
      windowed.push_back(window);
      const double without = window == 8192 ? of.time({"attention.backward.bf16", dims})->ns
                                            : of.time({"attention.window.backward.bf16", windowed})->ns;
      return of.time({"attention.sink.backward.bf16", windowed})->ns - without;
    };
    CHECK(added(h200()) > 0.5e6);
    CHECK(added(p) == doctest::Approx(added(h200())).epsilon(0.1));
  }
}

TEST_CASE("under full load a product takes what long runs took") {
  const Profile& p = imported("gb200-nvl72");
  const auto* law = p.clocks_for("bf16", "matrix");
  REQUIRE(law != nullptr);
  CHECK(law->rows.back().matrix == doctest::Approx(Tables::full));
  CHECK(law->limit_watts == doctest::Approx(1200));
  CHECK(law->rows.front().matrix == doctest::Approx(h200().clocks_for("bf16", "matrix")->rows.front().matrix));
}

TEST_CASE("FP8 under full load is cuBLAS' as it was measured on a GB200, and on the measured parts theirs is ours") {
  struct Cube {
    std::int64_t size;
    double tflops;
  };
  struct Part {
    const char* profile;
    std::vector<Cube> cubes;
    double off;
  };
  // Azure/AI-benchmarking-guide 2a370be, Azure_Results: random operands, 10,000 products of warm-up.
  const Part parts[] = {{"h200-sxm", {{4096, 1249.1}, {8192, 1300.6}}, 0.01},
                        {"h100-sxm", {{4096, 1216.9}, {8192, 1290.1}}, 0.03},
                        {"gb200-nvl72", {{8192, 2876.6}, {16384, 2906.9}}, 0.015}};
  for (const auto& part : parts) {
    const auto p = load(std::string("../../profiles/") + part.profile + ".json", {"test", 0});
    const double full = p.clocks_for("fp8", "matrix")->rows.back().matrix;
    for (const auto& [size, tflops] : part.cubes) {
      CAPTURE(part.profile);
      CAPTURE(size);
      const double ns = full * static_cast<double>(p.time({"gemm.fp8.tn", {size, size, size}})->ns);
      CHECK(2e-3 * std::pow(static_cast<double>(size), 3) / ns == doctest::Approx(tflops).epsilon(part.off));
    }
  }
}

TEST_CASE("what nothing was scaled by is met: other products, host copies and rings of Azure's GB200") {
  // The same page: CUDA 12.8, NCCL 2.25.1; H2D and D2H of nvbandwidth, in-place all-reduces among four GPUs by rings.
  const auto p = load("../../profiles/gb200-nvl72.json", {"test", 0});
  const double full = p.clocks_for("fp8", "matrix")->rows.back().matrix;
  const auto rate = [&](const std::string& family, std::vector<std::int64_t> dims, double amount) {
    return amount / static_cast<double>(p.time({family, std::move(dims)})->ns);
  };
  const auto tflops = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
    return rate("gemm.fp8.tn", {m, n, k}, 2e-3 * static_cast<double>(m) * static_cast<double>(n * k)) / full;
  };
  CHECK(tflops(6144, 12288, 12288) == doctest::Approx(2895.6).epsilon(0.04));
  constexpr std::int64_t copied = 1 << 28;
  CHECK(rate("copy.h2d", {copied}, copied) == doctest::Approx(201).epsilon(0.04));
  CHECK(rate("copy.d2h", {copied}, copied) == doctest::Approx(193).epsilon(0.02));
  for (const auto& [mebibytes, bus] : {std::pair(64, 550.73), {128, 574.19}, {256, 593.53}, {512, 618.74}}) {
    CAPTURE(mebibytes);
    const std::int64_t bytes = std::int64_t{mebibytes} << 20;
    CHECK(1.5 * rate("all_reduce.nvlink", {4, bytes}, static_cast<double>(bytes)) ==
          doctest::Approx(bus).epsilon(0.03));
  }
}

TEST_CASE("of a part without long runs the kin's count, as much less as its own long products say") {
  const auto& sheet = data_sheet("gb300-nvl72");
  const Profile& p = imported("gb300-nvl72");
  const double full = Tables::full * sheet.under_load->bf16;
  CHECK(p.clocks_for("bf16", "matrix")->rows.back().matrix == doctest::Approx(full));
  // A short run that is throttled itself (all above half a millisecond) was so by what this part adds, not its kin.
  CHECK(p.time({"gemm.bf16.tn", {8192, 8192, 8192}})->ns ==
        doctest::Approx(Tables::cool_ns(8192, 8192, 8192) * Tables::full / full).epsilon(0.001));
  CHECK(p.time({"gemm.bf16.tn", {1024, 1024, 1024}})->ns == doctest::Approx(Tables::cool_ns(1024, 1024, 1024)));
}

TEST_CASE("the maximum of a tensor takes what it does on an H200: its kernel gains nothing from faster memory") {
  const Profile& p = imported("gb200-nvl72");
  for (const std::int64_t elements : {1 << 20, 1 << 26}) {
    const auto ns = [&](const Profile& of) { return of.time({"amax", {elements}})->ns; };
    CHECK(ns(p) == doctest::Approx(1.345 / 1.307 * ns(h200())).epsilon(0.001));
  }
}

TEST_CASE("Triton's chunked products gain no more from Blackwell than one was seen to; nothing gets slower by that") {
  const Profile& p = imported("gb200-nvl72");
  const Profile derived = derive(h200(), data_sheet("gb200-nvl72"));
  std::size_t raised = 0;
  for (const auto& [name, samples] : p.samples) {
    CAPTURE(name);
    const bool chunked =
        (name.starts_with("mamba.") || name.starts_with("gated_delta.")) && family(name).load == Load::matrix;
    if (!chunked) continue;
    for (const auto& s : samples) {
      const double on_h200 = h200().time({name, s.dims})->ns, by_sheet = derived.time({name, s.dims})->ns;
      CHECK(s.ns == doctest::Approx(std::max(by_sheet, 450.0 / 602 * on_h200)).epsilon(0.001));
      CHECK(s.ns < on_h200);
      raised += s.ns > 1.001 * by_sheet ? 1 : 0;
    }
  }
  CHECK(raised > 50);
}

TEST_CASE("collectives count bytes; eight GPUs of a rack are a B200's eight, as much slower as four are") {
  const Profile& p = imported("gb200-nvl72");
  const double elements = 1 << 20, us = 1.1 * 4 * (10 + elements / 1e5);
  CHECK(p.time({"all_to_all.nvlink", {4, 2 << 20}})->ns == doctest::Approx(us * 1e3));
  const auto eight = p.time({"all_gather.nvlink", {8, 2 << 20}});
  CHECK(eight->ns == doctest::Approx(2 * us * 1e3).epsilon(0.001));
  CHECK(eight->spread >= 0.09);  // as far as four of one are from four of the other
}

TEST_CASE("every entry is public or derived, with its source and an error") {
  const Profile& p = imported("b200-sxm");
  for (const auto& [name, samples] : p.samples)
    for (const auto& s : samples) {
      CHECK(!s.source.empty());
      CHECK((s.origin == Origin::published || s.origin == Origin::derived));
    }
  const auto only = tables::published_only(p);
  CHECK(only.samples.contains("gemm.bf16.tn"));
  CHECK(!only.samples.contains("rmsnorm.forward"));
  CHECK(parse(to_json(only), "only").samples.size() == only.samples.size());
}

TEST_CASE("what is missing or wrong in a table is named with its file and line") {
  const Tables made("tables-wrong");
  const auto import = [&](const char* gpu) {
    return tables::import_tables({made.folder(), ""}, h200(), data_sheet(gpu));
  };
  CHECK_THROWS_WITH_AS(import("h100-sxm"), doctest::Contains("h100_sxm/gemm/"), UsageError);
  made.write("data/gb200/gemm/trtllm/1.3.0rc20/gemm_perf.csv", "gemm_dtyp,m,n,k,latency\nbfloat16,1,1,1,1\n");
  CHECK_THROWS_WITH_AS(import("gb200-nvl72"), doctest::Contains("did you mean \"gemm_dtyp\""), UsageError);
  made.write("data/gb200/gemm/trtllm/1.3.0rc20/gemm_perf.csv", "gemm_dtype,m,n,k,latency\nbfloat16,1,1\n");
  CHECK_THROWS_WITH_AS(import("gb200-nvl72"), doctest::Contains("gemm_perf.csv:2"), UsageError);
  made.write("data/gb200/gemm/trtllm/1.3.0rc20/gemm_perf.csv", "gemm_dtype,m,n,k,latency\nbfloat16,1024,x,1024,1\n");
  CHECK_THROWS_WITH_AS(import("gb200-nvl72"), doctest::Contains("\"x\" is no number"), UsageError);
}

// Their H200 beside ours (docs/public-tables.md): if this fails, either the tables are read wrongly or a GPU is not
// what it was.
TEST_CASE("aiconfigurator's H200 and ours agree, kernel by kernel") {
  const Profile theirs = load("data/aiconfigurator-h200-sxm.json", {"test", 0}), ours = h200();
  const auto compare = [&](const std::string& family, std::int64_t least_bytes) {
    std::vector<double> ratios;
    for (const auto& s : theirs.samples.at(family)) {
      if (least_bytes > 0 && s.dims.back() < least_bytes) continue;
      ratios.push_back(s.ns / ours.time({family, s.dims})->ns);
    }
    std::ranges::sort(ratios);
    return ratios;
  };
  const auto products = compare("gemm.bf16.tn", 0);
  REQUIRE(products.size() > 400);
  CHECK(products[products.size() / 2] == doctest::Approx(1).epsilon(0.02));
  CHECK(products[products.size() / 20] > 0.88);
  CHECK(products[products.size() * 19 / 20] < 1.12);
  for (const char* op : {"all_gather", "reduce_scatter", "all_reduce", "all_to_all"}) {
    const auto times = compare(std::string(op) + ".nvlink", 4 << 20);
    CHECK_MESSAGE(times[times.size() / 2] == doctest::Approx(1).epsilon(0.06), op);
  }
}

}  // namespace public_tables_test
