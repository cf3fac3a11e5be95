// An HTTP server with one page: node server.js ADDRESS PORT BYTES
const [address, port, bytes] = process.argv.slice(2);
const page = Buffer.alloc(Number(bytes), 'x');
const headers = { 'Content-Type': 'text/plain', 'Content-Length': page.length };
require('http').createServer((request, response) => {
  response.writeHead(200, headers);
  response.end(page);
}).listen(Number(port), address, 4096);
