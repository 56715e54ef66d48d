// A js-libp2p node that is a server of the DHT, driven like peer.mjs: a JSON command a line on
// stdin, a JSON answer a line on stdout. Keys are multihashes and values bytes, all in hex.
import { createInterface } from 'node:readline'
import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { identify } from '@libp2p/identify'
import { kadDHT, passthroughMapper } from '@libp2p/kad-dht'
import { peerIdFromString } from '@libp2p/peer-id'
import { ping } from '@libp2p/ping'
import { tcp } from '@libp2p/tcp'
import { multiaddr } from '@multiformats/multiaddr'
import { ipnsSelector } from 'ipns/selector'
import { ipnsValidator } from 'ipns/validator'
import { createLibp2p } from 'libp2p'
import { CID } from 'multiformats/cid'
import * as Digest from 'multiformats/hashes/digest'

const RAW = 0x55
const bytes = hex => Uint8Array.from(Buffer.from(hex, 'hex'))
const hex = array => Buffer.from(array).toString('hex')
const cidOf = key => CID.createV1(RAW, Digest.decode(bytes(key)))

const node = await createLibp2p({
  addresses: { listen: ['/ip4/127.0.0.1/tcp/0'] },
  transports: [tcp()],
  connectionEncrypters: [noise()],
  streamMuxers: [yamux()],
  services: {
    identify: identify(),
    ping: ping(),
    dht: kadDHT({
      protocol: '/ipfs/kad/1.0.0',
      clientMode: false,
      peerInfoMapper: passthroughMapper, // loopback addresses, too
      validators: { ipns: ipnsValidator },
      selectors: { ipns: ipnsSelector }
    })
  },
  connectionMonitor: { enabled: false }
})

async function providersOf (key) {
  const found = []
  for await (const each of node.contentRouting.findProviders(cidOf(key), { signal: AbortSignal.timeout(20000) })) {
    found.push({ peer: each.id.toString(), addresses: each.multiaddrs.map(String) })
  }
  return { providers: found }
}

async function waitForTable (peer) {
  const id = peerIdFromString(peer)
  while (!(await node.services.dht.routingTable.find(id))) await new Promise(resolve => setTimeout(resolve, 50))
  return {}
}

const commands = {
  connect: async c => { await node.dial(multiaddr(c.address)); return {} },
  wait: c => waitForTable(c.peer),
  provide: async c => { await node.contentRouting.provide(cidOf(c.key)); return {} },
  providers: c => providersOf(c.key),
  kept: async c => ({ peers: (await node.services.dht.providers.getProviders(cidOf(c.key))).map(String) }),
  find: async c => {
    const found = await node.peerRouting.findPeer(peerIdFromString(c.peer), { signal: AbortSignal.timeout(20000) })
    return { addresses: found.multiaddrs.map(String) }
  },
  put: async c => { await node.contentRouting.put(bytes(c.key), bytes(c.value)); return {} },
  get: async c => ({ value: hex(await node.contentRouting.get(bytes(c.key))) })
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
