// The clock of synchronous schemes under a setting: the law of sim/drivers/lockstep and sim/collectives/pricing,
// on the tables of sim/experiments/explore. A setting has factors: latency, bandwidth, payload, compute, straggler
// (of worker 0). Times are in seconds.

function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const view = new DataView(new ArrayBuffer(8));
  const values = new Float64Array(bytes.length / 6);
  for (let i = 0; i < values.length; i++) {
    for (let k = 0; k < 6; k++) view.setUint8(k, bytes[6 * i + k]);
    values[i] = view.getFloat64(0);
  }
  return values;
}

function lawOf(data, setting) {
  const { links, workers: n } = data;
  const latency = links.costs.map(([fixed, scaled]) => fixed + scaled * setting.latency);
  const perByte = links.costs.map(([, , fixed, scaled]) => Math.max(fixed, scaled / setting.bandwidth));
  const between = (a, b) => links.of[a][b];

  // When each rank of a collective is through, by the times from which its blocks can leave.
  function completion(layout, hosts, ready, payload) {
    const overhead = layout.rendezvous ? links.overhead_s : links.block_overhead_s;
    const announcement = layout.rendezvous ? links.announcement : 0;
    const done = ready.slice(), at = ready.slice(), first = [], last = [], arrived = [];
    let longest = 0;
    for (const node of layout.nodes) {
      if (node.length === 4) {
        const [post, rank, before, ends] = node;
        let time = at[before];
        for (const end of ends) time = Math.max(time, (end % 2 ? arrived : last)[end >> 1]);
        at[post] = time;
        done[rank] = Math.max(done[rank], time);
        continue;
      }
      const [source, destination, offered, posted, pieces, after, behind] = node;
      const cost = between(hosts[source], hosts[destination]), hop = latency[cost];
      const piece = layout.piece_bytes[last.length] * payload * perByte[cost];
      let begin = at[posted];
      if (announcement) begin += announcement * latency[between(hosts[destination], hosts[source])];
      begin = Math.max(at[offered], begin);
      let end = begin;
      for (const other of after) {
        begin = Math.max(begin, first[other] + hop_of(other));
        end = Math.max(end, arrived[other]);
      }
      begin += overhead;
      for (const other of behind) begin = Math.max(begin, last[other]);
      let left = begin + pieces * piece;
      if (after.length) left = Math.max(left, end + overhead + piece);
      first.push(begin + piece);
      last.push(left);
      arrived.push(left + hop);
      longest = Math.max(longest, hop);
      done[source] = Math.max(done[source], left);
      done[destination] = Math.max(done[destination], left + hop);
    }
    return layout.tail ? done.map((time) => time + layout.tail * longest) : done;
    function hop_of(other) { return arrived[other] - last[other]; }
  }

  function collective(row, name, now, end) {
    const { hosts, layout } = row.of.find((each) => each.name === name) ?? row.of[0];
    const joined = hosts.map((host) => now[host]), latest = Math.max(...joined);
    const ready = joined.map((time) => time - latest + links.launch_s);
    const done = completion(data.layouts[layout], hosts, ready, row.fixed ? 1 : setting.payload);
    hosts.forEach((host, rank) => { end[host] = latest + (row.root ? done[rank] : Math.max(done[rank], 0)); });
  }

  const cheapest = new Map();
  function byPrice(row) {
    if (!cheapest.has(row)) {
      let best = Infinity;
      for (const { name, hosts, layout } of row.of) {
        const ready = hosts.map(() => links.launch_s);
        const price = Math.max(...completion(data.layouts[layout], hosts, ready, row.fixed ? 1 : setting.payload));
        if (price < best) {
          best = price;
          cheapest.set(row, name);
        }
      }
    }
    return cheapest.get(row);
  }

  function mix([bytes, sources], now) {
    const end = now.slice();
    sources.forEach((of, receiver) => {
      for (const sender of of) {
        const cost = between(sender, receiver);
        const announced = links.mix_announcement * latency[between(receiver, sender)];
        const left = Math.max(now[sender], now[receiver] + announced) + links.block_overhead_s
          + bytes * setting.payload * perByte[cost];
        end[sender] = Math.max(end[sender], left);
        end[receiver] = Math.max(end[receiver], left + latency[cost]);
      }
    });
    return end;
  }

  // Each worker's time of publishing each step, side by side; and the seconds that all workers have computed.
  function run(steps, durations, names) {
    let now = new Array(n).fill(0), begun = null, gradients = 0, computed = 0;
    const published = new Float64Array(steps.length * n);
    const compute = (seconds) => {
      now = now.map((time, rank) => time + seconds(rank));
      for (let rank = 0; rank < n; rank++) computed += seconds(rank);
    };
    steps.forEach((number, step) => {
      for (const [kind, what] of data.steps[number]) {
        if (kind === "gradient") {
          const row = durations.length > n ? n * gradients++ : 0;
          compute((rank) => durations[row + rank] * setting.compute * (rank ? 1 : setting.straggler));
        } else if (kind === "encode") compute((rank) => (what.length ? what[rank] : what) * setting.payload);
        else if (kind === "pass") compute(() => what);
        else if (kind === "mix") now = mix(data.mixes[what], now);
        else if (kind === "start") begun = mix(data.mixes[what], now);
        else if (kind === "wait") now = now.map((time, rank) => Math.max(time, begun[rank]));
        else {
          const end = now.slice();
          for (const each of what) {
            const row = data.collectives[each];
            collective(row, row.what && (names[row.what] ?? byPrice(row)), now, end);
          }
          now = end;
        }
      }
      published.set(now, step * n);
    });
    return { published, computed, end: Math.max(...now) };
  }

  // The algorithms of a scheme's collectives by the shortest cycle without anything random, as in
  // sim/experiments/choice.py; absent: each collective's own cheapest.
  function choose({ steps, durations, tries }) {
    const rows = steps.flatMap((number) => data.steps[number].filter(([kind]) => kind === "collectives"))
      .flatMap(([, of]) => of).map((number) => data.collectives[number]).filter((row) => row.what);
    let names = {};
    if (!tries || !rows.length) return names;
    const cycle = steps.length / 3;
    const took = (tried) => {
      const { published, end } = run(steps, durations, tried);
      return (end - Math.max(...published.slice((cycle - 1) * n, cycle * n))) / 2;
    };
    let best = took(names);
    for (const what of new Set(rows.map((row) => row.what))) {
      const own = rows.filter((row) => row.what === what), prices = new Set(own.map(byPrice));
      for (const { name } of own[0].of) {
        if (prices.size === 1 && prices.has(name)) continue;
        const seconds = took({ ...names, [what]: name });
        if (seconds < best * (1 - 1e-9)) {
          best = seconds;
          names = { ...names, [what]: name };
        }
      }
    }
    return names;
  }

  return { run, choose };
}
