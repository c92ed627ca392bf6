// Memory under pressure: what people and programs are told. Runs with the prediction of fixture.hpp.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "fixture.hpp"
#include "pipewright/report.hpp"

namespace pressure_test {

using namespace pipewright;

namespace {

constexpr std::int64_t GiB = 1 << 30;

/// Rank 0 fits, rank 1 does not.
predict::Prediction pressed() {
  auto p = report::small_prediction();
  p.memory_limit = Bytes(80 * GiB);
  for (auto& rank : p.ranks) {
    auto& pressure = rank.pressure.emplace();
    pressure.needed = Bytes(60 * GiB);
    pressure.probability = 0.9987;
    pressure.as_configured.at = "B 0.0";
    pressure.as_configured.owner = "weight gradients";
    pressure.as_configured.requested = Bytes(GiB / 4);
    pressure.as_configured.cached = Bytes(3 * GiB);
    pressure.as_configured.largest_gap = Bytes(GiB / 8);
    pressure.as_configured.pinned_by = {{"mlp.fc1_output", Bytes(2 * GiB)}};
    pressure.as_configured.segments = {{Bytes(GiB), Bytes(GiB / 8), {{"mlp.fc1_output", Bytes(7 * GiB / 8)}}}};
  }
  auto& full = p.ranks[1];
  auto& failure = full.pressure->failure.emplace();
  failure.at = "B 1.0";
  failure.piece = "layer 3, attention.core backward";
  failure.owner = "attention.q_gradient";
  failure.requested = Bytes(GiB / 4);
  failure.owners = {{"optimizer moments", Bytes(20 * GiB)}};
  full.pressure->verdict = predict::Pressure::Verdict::fits_expandable;
  full.pressure->needed = Bytes(81 * GiB);
  full.pressure->probability.reset();
  full.pressure->message = "CUDA out of memory. Tried to allocate 256.00 MiB.";
  return p;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("simulate says who fits, by how much and how surely, and where it stops") {
  const auto text = report::simulate_text(pressed());
  CHECK(contains(text, "0                   fits  60.00   20.00   100 %"));
  CHECK(contains(text, "1     fits if expandable  81.00   -1.00       -"));
  CHECK(contains(text,
                 "rank 1 would stop in B 1.0, layer 3, attention.core backward, at attention.q_gradient (0.25 GiB):"));
  CHECK(contains(text, "CUDA out of memory. Tried to allocate 256.00 MiB."));
  CHECK(contains(text, "mlp.fc1_output 2.00"));
  for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find('\n', begin);
    CHECK(std::min(end, text.size()) - begin <= 120);
  }
}

TEST_CASE("simulate without it says nothing about it") {
  CHECK_FALSE(contains(report::simulate_text(report::small_prediction()), "Room on each pipeline rank"));
  CHECK_FALSE(contains(report::simulate_json(report::small_prediction()), "\"pressure\""));
}

TEST_CASE("the JSON holds verdict, margin, probability, the first failure and what pins the cache") {
  const auto json = nlohmann::json::parse(report::simulate_json(pressed()));
  const auto& fits = json["ranks"][0]["pressure"];
  CHECK(fits["verdict"] == "fits");
  CHECK(fits["margin_bytes"] == 20 * GiB);
  CHECK(fits["probability"] == doctest::Approx(0.9987));
  CHECK_FALSE(fits.contains("first_failure"));
  CHECK(fits["fragmentation"]["segments"][0]["owners"][0]["owner"] == "mlp.fc1_output");
  CHECK(fits["fragmentation"]["largest_gap_bytes"] == GiB / 8);
  const auto& full = json["ranks"][1]["pressure"];
  CHECK(full["verdict"] == "fits with expandable segments");
  CHECK(full["margin_bytes"] == -GiB);
  CHECK(full["probability"].is_null());
  CHECK(full["first_failure"]["owner"] == "attention.q_gradient");
  CHECK(full["first_failure"]["owners"][0]["bytes"] == 20 * GiB);
}

TEST_CASE("explain --peak ends with what pins the cached memory") {
  const auto text = report::explain_peak_text(pressed(), 0);
  CHECK(contains(text, "reserved memory grew to its peak in B 0.0 for weight gradients (0.25 GiB)"));
  CHECK(contains(text, "1.00               0.12  mlp.fc1_output 0.88"));
}

}  // namespace pressure_test
