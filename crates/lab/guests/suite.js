// A JavaScript suite for the job `js` of the experiment `offload`: `duk suite.js`, or any other interpreter of JavaScript.
//
// Seven programs do what programs in JavaScript do, each a fixed amount. Each returns a checksum of all that it computed. One that is
// not as it must be ends the suite with an error, so that a machine which computes wrongly, or was damaged on its way, is found.
//
// It is ECMAScript 5 with typed arrays and Math.imul, because Duktape has no more: neither Map nor Set. Of floating point it uses
// only what every processor rounds alike: + - * / and Math.sqrt. Math.sin and the like differ between C libraries.
"use strict";

// Pseudo-random whole numbers, by a xorshift of 32 bits.
function Draw(seed) {
  this.state = seed;
}
Draw.prototype.below = function (limit) {
  var s = this.state;
  s ^= s << 13;
  s ^= s >>> 17;
  s ^= s << 5;
  this.state = s;
  return (s >>> 0) % limit;
};

// A checksum (FNV-1a, of words instead of bytes). Each step is a bijection, so no single difference is lost.
function Sum() {
  this.hash = 0x811c9dc5;
  this.float = new Float64Array(1);
  this.bits = new Int32Array(this.float.buffer);
}
Sum.prototype.add = function (whole) {
  this.hash = Math.imul(this.hash ^ whole, 0x01000193);
};
Sum.prototype.addFloat = function (number) {
  this.float[0] = number;
  this.add(this.bits[0]);
  this.add(this.bits[1]);
};
Sum.prototype.addText = function (text) {
  for (var n = 0; n < text.length; n++) this.add(text.charCodeAt(n));
};
Sum.prototype.value = function () {
  return this.hash >>> 0;
};

// Objects and closures: customers go through stations with queues, in the order of a heap of events.
function events(customers) {
  var draw = new Draw(1), sum = new Sum(), heap = [], now = 0, made = 0;

  function sooner(a, b) {
    return a.at < b.at || (a.at === b.at && a.number < b.number);
  }
  function after(delay, action) {
    var event = { at: now + delay, number: made++, action: action }, at = heap.length;
    for (var parent; at > 0 && sooner(event, heap[(parent = (at - 1) >> 1)]); at = parent) heap[at] = heap[parent];
    heap[at] = event;
  }
  function next() {
    var first = heap[0], last = heap.pop(), at = 0;
    for (var child = 1; child < heap.length; child = 2 * at + 1) {
      if (child + 1 < heap.length && sooner(heap[child + 1], heap[child])) child++;
      if (!sooner(heap[child], last)) break;
      heap[at] = heap[child];
      at = child;
    }
    if (heap.length > 0) heap[at] = last;
    return first;
  }

  function Station(servers) {
    this.free = servers;
    this.queue = [];
  }
  Station.prototype.enter = function (leave) {
    var station = this;
    if (station.free === 0) return station.queue.push(leave);
    station.free--;
    after(1 + draw.below(100), function () {
      station.free++;
      if (station.queue.length > 0) station.enter(station.queue.shift());
      leave();
    });
  };

  var stations = [1, 2, 3, 1].map(function (servers) { return new Station(servers); });
  function arrive(customer) {
    var came = now, visits = 2 + draw.below(3);
    if (customer + 1 < customers) after(draw.below(200), function () { arrive(customer + 1); });
    (function visit() {
      if (visits-- > 0) return stations[draw.below(stations.length)].enter(visit);
      sum.add(customer);
      sum.add(now - came);
    })();
  }
  arrive(0);
  while (heap.length > 0) {
    var event = next();
    now = event.at;
    event.action();
  }
  return sum.value();
}

// Typed arrays: bodies that attract each other.
function bodies(steps) {
  var count = 16, draw = new Draw(2), sum = new Sum(), at = new Float64Array(3 * count), speed = new Float64Array(3 * count);
  for (var n = 0; n < at.length; n++) at[n] = draw.below(2000) / 1000 - 1;
  for (var step = 0; step < steps; step++) {
    for (var a = 0; a < at.length; a += 3) {
      for (var b = a + 3; b < at.length; b += 3) {
        var x = at[b] - at[a], y = at[b + 1] - at[a + 1], z = at[b + 2] - at[a + 2];
        // softened, so that two that meet don't fly apart
        var square = x * x + y * y + z * z + 0.01, pull = 0.0001 / (square * Math.sqrt(square));
        speed[a] += x * pull; speed[a + 1] += y * pull; speed[a + 2] += z * pull;
        speed[b] -= x * pull; speed[b + 1] -= y * pull; speed[b + 2] -= z * pull;
      }
    }
    for (n = 0; n < at.length; n++) at[n] += speed[n];
  }
  for (n = 0; n < at.length; n++) sum.addFloat(at[n]);
  return sum.value();
}

// Strings and regular expressions.
function text(rounds) {
  var draw = new Draw(4), sum = new Sum(), syllables = "ba ce di fo gu la me ni so tu ran kel".split(" ");
  function word() {
    for (var made = "", left = 1 + draw.below(4); left > 0; left--) made += syllables[draw.below(syllables.length)];
    return made;
  }
  for (var round = 0; round < rounds; round++) {
    for (var words = [], n = 0; n < 400; n++) words.push(word() + (draw.below(9) === 0 ? "." : draw.below(9) === 0 ? " " + draw.below(1e6) : ""));
    var page = words.join(" ").replace(/(^|\. )([a-z])/g, function (all, before, letter) { return before + letter.toUpperCase(); });
    sum.add((page.match(/\b([a-z]{2})[a-z]*\1\b/gi) || []).length);
    page = page.replace(/(\d)(?=(?:\d{3})+\b)/g, "$1,").replace(/(?:ra|ke)+[nl]\b/g, "<$&>");
    page.split(/\.\s*/).forEach(function (sentence) { sum.add(sentence.lastIndexOf("<") * 1000 + sentence.length); });
    sum.addText(page.substring(0, 200));
  }
  return sum.value();
}

// JSON there and back.
function json(rounds) {
  var draw = new Draw(5), sum = new Sum(), orders = [];
  for (var n = 0; n < 100; n++) {
    orders.push({ id: n, paid: draw.below(2) === 1, note: draw.below(4) ? "line\n\"" + n + "\" \u00e9" : null, items: [] });
    for (var m = draw.below(8); m >= 0; m--) orders[n].items.push({ name: "item" + draw.below(500), price: draw.below(1e6) / 64, at: [n, m, -m] });
  }
  for (var round = 0; round < rounds; round++) {
    var kept = JSON.stringify({ round: round, orders: orders });
    orders = JSON.parse(kept).orders;
    orders[round % orders.length].items.push({ name: "more" + round, price: round / 8, at: [] });
    sum.add(kept.length);
  }
  sum.addText(JSON.stringify(orders, null, 1));
  return sum.value();
}

// Sorting, and objects as dictionaries.
function tables(rounds) {
  var draw = new Draw(6), sum = new Sum();
  for (var round = 0; round < rounds; round++) {
    for (var rows = [], n = 0; n < 2000; n++) rows.push({ number: n, key: "k" + draw.below(300), value: draw.below(10000) });
    // ties are decided by the number, since an ECMAScript 5 may sort unstably
    rows.sort(function (a, b) { return a.value - b.value || a.number - b.number; });
    var groups = rows.reduce(function (groups, row) {
      (groups[row.key] = groups[row.key] || []).push(row);
      return groups;
    }, Object.create(null));
    Object.keys(groups).sort().forEach(function (key) {
      var odd = groups[key].filter(function (row) { return row.value & 1; });
      sum.add(odd.map(function (row) { return row.number; }).reduce(function (a, b) { return Math.imul(a, 31) + b; }, 0));
      if (odd.length > 3) delete groups[key];
    });
    for (var key in groups) sum.add(groups[key].length);
  }
  return sum.value();
}

// Memory: a tree of which each insertion makes a new one that shares most of it, so that much is thrown away.
function trees(insertions) {
  var draw = new Draw(7), sum = new Sum(), kept = [], tree = null;
  function node(of, left, right) {
    return { key: of.key, rank: of.rank, left: left, right: right };
  }
  // The higher rank is above, which keeps it shallow (a treap).
  function insert(tree, made) {
    if (tree === null) return made;
    if (made.key === tree.key) return tree;
    if (made.key < tree.key) {
      var left = insert(tree.left, made);
      if (left.rank <= tree.rank) return node(tree, left, tree.right);
      return node(left, left.left, node(tree, left.right, tree.right));
    }
    var right = insert(tree.right, made);
    if (right.rank <= tree.rank) return node(tree, tree.left, right);
    return node(right, node(tree, tree.left, right.left), right.right);
  }
  function walk(tree, depth) {
    if (tree === null) return 0;
    var before = walk(tree.left, depth + 1);
    sum.add(tree.key * 64 + depth);
    return before + 1 + walk(tree.right, depth + 1);
  }
  for (var n = 0; n < insertions; n++) {
    tree = insert(tree, { key: draw.below(1 << 20), rank: draw.below(1 << 30), left: null, right: null });
    if (n % 1000 === 999) kept[(n / 1000 | 0) % 4] = tree;
  }
  kept.forEach(function (tree) { sum.add(walk(tree, 0)); });
  return sum.value();
}

// A compiler to closures for a small language of whole numbers, and a program in it.
function language(limit) {
  var source = "best = 0; n = 1; while n < limit { m = n; steps = 0; while m > 1 { odd = m % 2;" +
    " m = odd * (3 * m + 1) + (1 - odd) * m / 2; steps = steps + 1; }" +
    " if steps > best { best = steps; at = n; } sum = (sum + steps * n) % 65521; n = n + 1; }";
  var tokens = source.match(/[a-z]+|\d+|\S/g), next = 0, names = Object.create(null), levels = ["<>", "+-", "*/%"];
  var operations = {
    "<": function (a, b) { return a < b ? 1 : 0; }, ">": function (a, b) { return a > b ? 1 : 0; },
    "+": function (a, b) { return a + b; }, "-": function (a, b) { return a - b; },
    "*": function (a, b) { return a * b; }, "/": function (a, b) { return Math.floor(a / b); }, "%": function (a, b) { return a % b; }
  };

  function operand() {
    var token = tokens[next++], inner;
    if (/\d/.test(token)) return function () { return +token; };
    if (token !== "(") return function () { return names[token] || 0; };
    inner = expression(0);
    next++;
    return inner;
  }
  function binary(operation, left, right) {
    return function () { return operation(left(), right()); };
  }
  function expression(level) {
    if (level === levels.length) return operand();
    var left = expression(level + 1);
    while (levels[level].indexOf(tokens[next]) >= 0) left = binary(operations[tokens[next++]], left, expression(level + 1));
    return left;
  }
  function statement() {
    var token = tokens[next++], loop = token === "while", isBlock = loop || token === "if";
    if (!isBlock) next++;
    var value = expression(0);
    next++;
    if (!isBlock) return function () { names[token] = value(); };
    for (var body = []; tokens[next] !== "}"; ) body.push(statement());
    next++;
    return function () {
      while (value()) {
        for (var n = 0; n < body.length; n++) body[n]();
        if (!loop) return;
      }
    };
  }

  for (var program = []; next < tokens.length; ) program.push(statement());
  names.limit = limit;
  program.forEach(function (run) { run(); });
  var sum = new Sum();
  ["best", "at", "sum"].forEach(function (name) { sum.add(names[name]); });
  return sum.value();
}

// Each program, how much of it is done, and its checksum. Duktape, QuickJS and V8 agree on them.
[
  [events, 4000, 3742856127],
  [bodies, 1400, 1368703587],
  [text, 25, 1446024411],
  [json, 25, 2226963751],
  [tables, 6, 3972391763],
  [trees, 8000, 1759516439],
  [language, 500, 2514944384]
].forEach(function (part) {
  var sum = part[0](part[1]);
  if (sum !== part[2]) throw new Error("suite.js: the checksum of " + part[0].name + " is " + sum + " instead of " + part[2]);
});
