/* Pages that answer a question come first. */
var Scorer = {
  score: ([page, , , , score]) => score + (/^(how-to\/|start$|understand$)/.test(page) ? 6 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
