// Ask the search of a built site what it finds: node search.mjs FOLDER WORD... prints the pages of each word as JSON.
// The site's own worker runs, as in a browser: it is sent the index, then each word.
import fs from "node:fs";
import path from "node:path";
import vm from "node:vm";

const [site, ...words] = process.argv.slice(2);
const folder = path.join(site, "assets/javascripts/workers");
const script = fs.readdirSync(folder).find((name) => name.endsWith(".js"));
const listeners = [];
const waiting = [];
const worker = {
  addEventListener: (_, listener) => listeners.push(listener),
  postMessage: (answer) => waiting.shift()?.(answer),
  location: { href: "file:///assets/javascripts/workers/search.js" },
  importScripts: () => {},
  performance,
  Promise,
  setTimeout,
  URL,
};
worker.self = worker.window = worker;
vm.runInNewContext(fs.readFileSync(path.join(folder, script), "utf8"), worker);
const ask = (message) =>
  new Promise((answered) => {
    waiting.push(answered);
    for (const listener of listeners) listener({ data: message });
  });
const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"));
await ask({ type: 0, data: { ...index, options: { suggest: false } } });
const found = {};
for (const word of words) {
  const answer = await ask({ type: 2, data: word });
  found[word] = answer.data.items.map((group) => group[0].location);
}
console.log(JSON.stringify(found));
