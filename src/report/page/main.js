// ---- Reads the data and puts the page of its kind together.

async function main() {
  const holder = document.getElementById("pack");
  const pack = await unpack(holder.textContent);
  holder.remove();
  pack.runs = pack.json.runs.map((json) => new Run(pack, json));
  window.pipewright = { json: pack.json, runs: pack.runs };
  const sections = pages[pack.json.kind](pack).flat().filter(Boolean);
  const main = document.getElementById("main");
  main.replaceChildren(...sections);
  document.getElementById("nav").replaceChildren(...sections.filter((s) => s.id).map((s) => h("a", { href: "#" + s.id }, s.querySelector("h2").textContent)));
  window.pipewright.timeline?.resize();
  document.documentElement.dataset.ready = "true";
}

main().catch((error) => {
  document.getElementById("loading")?.replaceChildren("This page could not be drawn: " + error.message);
  throw error;
});
