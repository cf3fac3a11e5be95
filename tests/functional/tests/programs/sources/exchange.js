// The server and client sides of Node: http, net, cluster, child processes, worker threads.
'use strict';
const assert = require('node:assert');
const { fork, spawn } = require('node:child_process');
const cluster = require('node:cluster');
const { createHash } = require('node:crypto');
const { once } = require('node:events');
const fs = require('node:fs');
const http = require('node:http');
const net = require('node:net');
const { pipeline } = require('node:stream/promises');
const { Worker, isMainThread, workerData } = require('node:worker_threads');

const HOST = '127.0.0.1';
const body = Buffer.alloc(3_000_000, 'shunt over and over, ');
const hash = (bytes) => createHash('md5').update(bytes).digest('hex');

async function listening(server) {
  server.listen(0, HOST);
  await once(server, 'listening');
  return server.address().port;
}

async function read(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return Buffer.concat(parts);
}

async function request(port, bytes, agent) {
  const call = http.request({ port, host: HOST, agent, method: 'POST' });
  call.end(bytes);
  const [answer] = await once(call, 'response');
  return read(answer);
}

async function viaHttp() {
  const server = http.createServer((call, answer) => call.pipe(answer));
  const port = await listening(server);
  const agent = new http.Agent({ keepAlive: true, maxSockets: 8 });
  const sizes = Array.from({ length: 60 }, (_, n) => n * 1000);
  const answers = await Promise.all(sizes.map((n) => request(port, body.subarray(0, n), agent)));
  console.log('http, right', answers.filter((got, n) => got.equals(body.subarray(0, sizes[n]))).length);
  console.log('http, large', hash(await request(port, body, agent)));
  const fetched = await fetch(`http://${HOST}:${port}/`, { method: 'POST', body });
  console.log('fetch', hash(Buffer.from(await fetched.arrayBuffer())));
  agent.destroy();
  server.closeAllConnections();
  server.close();
}

async function viaNet() {
  const server = net.createServer({ allowHalfOpen: true }, (socket) => socket.pipe(socket));
  const port = await listening(server);
  const echoes = await Promise.all(Array.from({ length: 20 }, async (_, n) => {
    const socket = net.connect({ port, host: HOST, allowHalfOpen: true });
    socket.end(body.subarray(0, 100_000 + n));
    return (await read(socket)).equals(body.subarray(0, 100_000 + n));
  }));
  console.log('net, right', echoes.filter(Boolean).length);
  server.close();
}

async function viaFile() {
  fs.writeFileSync('piped', body);
  const server = net.createServer((socket) => pipeline(fs.createReadStream('piped'), socket));
  const port = await listening(server);
  await pipeline(net.connect(port, HOST), fs.createWriteStream('copy'));
  console.log('file', hash(fs.readFileSync('copy')));
  server.close();
}

// Workers of a cluster get connections, or share the listener.
async function viaCluster(policy) {
  cluster.schedulingPolicy = policy;
  cluster.setupPrimary({ exec: __filename, args: ['cluster'] });
  const workers = [cluster.fork(), cluster.fork()];
  const [[{ port }]] = await Promise.all(workers.map((w) => once(w, 'message')));
  const answers = await Promise.all(Array.from({ length: 40 }, (_, n) => request(port, body.subarray(0, n * 5000))));
  console.log('cluster', policy, answers.filter((got, n) => got.equals(body.subarray(0, n * 5000))).length);
  await Promise.all(workers.map((w) => { w.kill(); return once(w, 'exit'); }));
}

// A connected socket is sent to a child, and so is a listening one.
async function viaChild() {
  const child = fork(__filename, ['child']);
  const server = net.createServer({ pauseOnConnect: true }, (socket) => child.send('socket', socket));
  const port = await listening(server);
  const echo = async (n) => {
    const socket = net.connect({ port, host: HOST, allowHalfOpen: true });
    socket.end(body.subarray(0, n));
    return hash(await read(socket)) === hash(body.subarray(0, n));
  };
  console.log('sent sockets', await Promise.all([1, 1000, 400_000].map(echo)));
  const other = net.createServer();
  const second = await listening(other);
  child.send('server', other);
  await once(child, 'message');
  other.close();
  const socket = net.connect({ port: second, host: HOST, allowHalfOpen: true });
  socket.end(body.subarray(0, 300_000));
  console.log('sent server', hash(await read(socket)) === hash(body.subarray(0, 300_000)));
  child.disconnect();
  console.log('child', await once(child, 'exit'));
  server.close();
  // And one as the standard descriptors of a program that knows nothing of it.
  const inetd = net.createServer({ pauseOnConnect: true, allowHalfOpen: true }, (s) => {
    spawn('cat', { stdio: [s, s, 'inherit'] });
    s.destroy();
  });
  const third = await listening(inetd);
  const cat = net.connect({ port: third, host: HOST, allowHalfOpen: true });
  cat.end(body.subarray(0, 200_000));
  console.log('cat', hash(await read(cat)) === hash(body.subarray(0, 200_000)));
  inetd.close();
}

async function viaThreads() {
  const server = http.createServer((call, answer) => call.pipe(answer));
  const port = await listening(server);
  const threads = Array.from({ length: 4 }, (_, n) => new Worker(__filename, { workerData: { port, n } }));
  const right = await Promise.all(threads.map(async (thread) => (await once(thread, 'message'))[0]));
  console.log('threads', right);
  server.close();
  server.closeAllConnections();
}

async function main() {
  await viaHttp();
  await viaNet();
  await viaFile();
  await viaCluster(cluster.SCHED_RR);
  await viaChild();
  await viaThreads();
}

if (process.argv[2] === 'cluster') {
  const server = http.createServer((call, answer) => call.pipe(answer));
  server.listen(0, HOST, () => process.send({ port: server.address().port }));
} else if (process.argv[2] === 'child') {
  process.on('message', (what, handle) => {
    const echo = (socket) => { socket.pipe(socket); };
    if (what === 'socket') { handle.allowHalfOpen = true; echo(handle); handle.resume(); return; }
    handle.allowHalfOpen = true;
    handle.on('connection', (s) => { s.allowHalfOpen = true; echo(s); handle.close(); });
    process.send('ready');
  });
} else if (!isMainThread) {
  const { parentPort } = require('node:worker_threads');
  request(workerData.port, body.subarray(workerData.n)).then((got) => parentPort.postMessage(got.equals(body.subarray(workerData.n))));
} else {
  main().catch((e) => { console.log(e); process.exit(1); });
}
