// A js-libp2p node on a LAN: finds peers by multicast DNS, serves AutoNAT, and asks the peer whose
// address it is told to dial it back, in the words of its own codec. One JSON line for each thing.
import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { autoNAT } from '@libp2p/autonat'
import { autoNATv2 } from '@libp2p/autonat-v2'
import { identify } from '@libp2p/identify'
import { mdns } from '@libp2p/mdns'
import { tcp } from '@libp2p/tcp'
import { multiaddr } from '@multiformats/multiaddr'
import { createLibp2p } from 'libp2p'
import { Message } from './node_modules/@libp2p/autonat/dist/src/pb/index.js'

const AUTONAT = '/libp2p/autonat/1.0.0'
const [listen, publicHost] = process.argv.slice(2)
const say = object => process.stdout.write(JSON.stringify(object) + '\n')

const node = await createLibp2p({
  addresses: { listen: [listen] },
  transports: [tcp()],
  connectionEncrypters: [noise()],
  streamMuxers: [yamux()],
  peerDiscovery: [mdns({ interval: 1000 })],
  services: {
    identify: identify(),
    autonat: autoNAT({ startupDelay: 600_000 }),
    autonat2: autoNATv2({ startupDelay: 600_000 })
  },
  connectionMonitor: { enabled: false }
})
node.addEventListener('peer:discovery', event => {
  say({ found: event.detail.id.toString(), addresses: event.detail.multiaddrs.map(String) })
})
process.on('unhandledRejection', error => say({ fault: String(error) }))
say({ peer: node.peerId.toString() })

// Our message is short: its length fits in one byte of varint or two.
function frame (bytes) {
  const head = bytes.length < 128 ? [bytes.length] : [bytes.length & 127 | 128, bytes.length >> 7]
  return Uint8Array.from([...head, ...bytes])
}

async function askToDialBack (address, claimed) {
  const stream = await node.dialProtocol(multiaddr(address), AUTONAT)
  stream.send(frame(Message.encode({
    type: Message.MessageType.DIAL,
    dial: { peer: { id: node.peerId.toMultihash().bytes, addrs: claimed.map(each => multiaddr(each).bytes) } }
  })))
  let data = Buffer.alloc(0)
  for await (const chunk of stream) data = Buffer.concat([data, chunk.subarray()])
  return Message.decode(data.subarray(data[0] < 128 ? 1 : 2)).dialResponse
}

process.stdin.on('data', async line => {
  const port = listen.split('/')[4]
  const claimed = [`/ip4/${publicHost}/tcp/${port}`, '/ip4/8.8.8.8/tcp/1', `/ip4/${publicHost}/tcp/9`]
  try {
    const answer = await askToDialBack(String(line).trim(), claimed)
    const addr = answer.addr?.length ? multiaddr(answer.addr).toString() : ''
    say({ status: String(answer.status), address: addr, claimed: claimed[0] })
  } catch (error) {
    say({ fault: String(error?.stack ?? error) })
  }
})
