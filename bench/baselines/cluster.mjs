// Runs `serve` in as many processes as PROCESSES says: in this one where that is 1, otherwise in workers of Node's
// cluster module, which share the port. Workers begin together, so that none gets all of the first connections.
// SIGTERM ends the workers, and this process once they are gone.
import cluster from 'node:cluster';
import { once } from 'node:events';

export async function runCluster(serve) {
  const processes = Number(process.env.PROCESSES);
  if (processes === 1) {
    return serve();
  }
  if (cluster.isWorker) {
    process.send('loaded');
    await once(process, 'message');
    return serve();
  }
  let loaded = 0;
  cluster.on('message', () => {
    loaded += 1;
    if (loaded === processes) eachWorker((worker) => worker.send('begin'));
  });
  cluster.on('exit', () => {
    if (Object.keys(cluster.workers).length === 0) process.exit();
  });
  process.on('SIGTERM', () => eachWorker((worker) => worker.process.kill()));
  for (let n = 0; n < processes; n += 1) cluster.fork();
}

function eachWorker(act) {
  Object.values(cluster.workers).forEach(act);
}
