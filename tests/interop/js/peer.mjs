// A js-libp2p node that the interop tests drive: one JSON command a line on stdin, one JSON answer
// a line on stdout. It serves ping, identify, /echo/1.0.0 and /perf/1.0.0, and dials for the same.
import { createHash } from 'node:crypto'
import { createInterface } from 'node:readline'
import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { identify } from '@libp2p/identify'
import { ping } from '@libp2p/ping'
import { tcp } from '@libp2p/tcp'
import { multiaddr } from '@multiformats/multiaddr'
import { createLibp2p } from 'libp2p'

const ECHO = '/echo/1.0.0'
const PERF = '/perf/1.0.0'
const CHUNK = 64 * 1024

// Send with backpressure: js streams buffer without bound unless the writer waits for 'drain'.
async function sendAll (stream, data) {
  if (!stream.send(data)) await stream.onDrain()
}

async function serveEcho (stream) {
  for await (const chunk of stream) await sendAll(stream, chunk)
  await stream.close()
}

async function sendZeros (stream, count) {
  const zeros = new Uint8Array(CHUNK)
  for (let left = count; left > 0; left -= CHUNK) {
    await sendAll(stream, left >= CHUNK ? zeros : zeros.subarray(0, left))
  }
}

async function servePerf (stream) {
  let head = Buffer.alloc(0)
  for await (const chunk of stream) {
    if (head.length < 8) head = Buffer.concat([head, chunk.subarray()])
  }
  await sendZeros(stream, Number(head.readBigUInt64BE(0)))
  await stream.close()
}

async function runEcho (node, address, count) {
  const stream = await node.dialProtocol(multiaddr(address), ECHO)
  const sent = createHash('sha256')
  const received = createHash('sha256')
  let bytes = 0
  const reading = (async () => {
    for await (const chunk of stream) {
      received.update(chunk.subarray())
      bytes += chunk.byteLength
    }
  })()
  for (let offset = 0; offset < count; offset += CHUNK) {
    const chunk = new Uint8Array(Math.min(CHUNK, count - offset))
    for (let i = 0; i < chunk.length; i += 256) chunk[i] = (offset + i) >>> 8
    sent.update(chunk)
    await sendAll(stream, chunk)
  }
  await stream.close()
  await reading
  return { bytes, equal: sent.digest('hex') === received.digest('hex') }
}

async function runPerf (node, address, upload, download) {
  const stream = await node.dialProtocol(multiaddr(address), PERF)
  const head = Buffer.alloc(8)
  head.writeBigUInt64BE(BigInt(download))
  let received = 0
  const reading = (async () => { for await (const chunk of stream) received += chunk.byteLength })()
  await sendAll(stream, head)
  await sendZeros(stream, upload)
  await stream.close()
  await reading
  return { received }
}

async function runIdentify (node, address) {
  const connection = await node.dial(multiaddr(address))
  const answer = await node.services.identify.identify(connection)
  return {
    peer: answer.peerId.toString(),
    agent: answer.agentVersion,
    protocols: answer.protocols,
    addresses: answer.listenAddrs.map(String),
    signed: answer.signedPeerRecord != null
  }
}

// Open an echo stream, get one answer, then drop the TCP connection without a word.
async function runAbort (node, address) {
  const connection = await node.dial(multiaddr(address))
  const stream = await connection.newStream(ECHO)
  const first = stream[Symbol.asyncIterator]().next()
  await sendAll(stream, new Uint8Array(CHUNK))
  await first
  connection.abort(new Error('abrupt close, on purpose'))
  return {}
}

const node = await createLibp2p({
  addresses: { listen: ['/ip4/127.0.0.1/tcp/0'] },
  transports: [tcp()],
  connectionEncrypters: [noise()],
  streamMuxers: [yamux()],
  services: { identify: identify(), ping: ping() },
  connectionMonitor: { enabled: false }
})
await node.handle(ECHO, serveEcho)
await node.handle(PERF, servePerf)

const commands = {
  ping: async c => ({ ms: await node.services.ping.ping(multiaddr(c.address)) }),
  identify: c => runIdentify(node, c.address),
  echo: c => runEcho(node, c.address, c.bytes),
  perf: c => runPerf(node, c.address, c.upload, c.download),
  abort: c => runAbort(node, c.address),
  connections: async () => ({ peers: node.getPeers().map(String) }),
  dropall: async () => { for (const c of node.getConnections()) c.abort(new Error('dropped, on purpose')); return {} },
  hangup: async () => { await Promise.all(node.getConnections().map(c => c.close())); return {} }
}

const say = object => process.stdout.write(JSON.stringify(object) + '\n')
say({ peer: node.peerId.toString(), addresses: node.getMultiaddrs().map(String) })
process.on('uncaughtException', error => say({ fault: String(error) }))
process.on('unhandledRejection', error => say({ fault: String(error) }))

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line)
  try {
    say({ ok: true, ...(await commands[command.do](command)) })
  } catch (error) {
    say({ ok: false, error: String(error?.stack ?? error) })
  }
}
await node.stop()
process.exit(0)
