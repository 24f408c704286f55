/* How pages are ranked. A question need not be on a page word for word: each of its words that is there counts,
   rare words more than common ones and words of headings most. Pages that answer a question come first, and
   long records of what was measured last. */
const ANSWERS = /^(how-to\/|start$|understand$)/;
const RECORDS = /^(papers\/(?!index)|board$|validation|releases\/|architecture$)/;
var Scorer = {
  score: ([page, , , , score]) => score * (ANSWERS.test(page) ? 1.4 : RECORDS.test(page) ? 0.7 : 1),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

/* Words of other people for what these pages call by one name, the first of each line. */
const OTHER_WORDS = `
  gbit gbps
  mbit mbps
  site datacenter datacentre region zone
  differ heterogeneous
  node host
  scheme algorithm
  encoded quantization quantisation compression
  fault failure crash preemption interruption
  accurate accuracy error
  licence license
  rationed throttling burst shaping
  interval confidence
  modelled limitation
  seed repeat
  asynchronous async
  fedavg federated
  curves convergence
`;

const stem = (word) => new Stemmer().stemWord(word);
const lines = OTHER_WORDS.trim().split("\n").map((line) => line.trim().split(" ").map(stem));
const pagesWith = Search.performTermsSearch;
const worthOfOther = 0.7;
Search.performTermsSearch = (words, excluded) => {
  const total = new Map();
  for (const word of words) {
    const best = new Map();
    for (const each of new Set([word, ...lines.filter((line) => line.includes(word)).flat()])) {
      const hits = pagesWith(new Set([each]), excluded);
      const rare = Math.log(1 + Search._index.docnames.length / hits.length);
      for (const hit of hits) {
        const score = hit[4] * rare * (each === word ? 1 : worthOfOther);
        if (score > (best.get(hit[0])?.[4] ?? 0)) best.set(hit[0], hit.with(4, score));
      }
    }
    for (const [page, hit] of best) total.set(page, hit.with(4, hit[4] + (total.get(page)?.[4] ?? 0)));
  }
  const all = [...total.values()];
  const enough = Math.max(...all.map((hit) => hit[4])) / 4;
  return all.filter((hit) => hit[4] >= enough);
};
