"""The adapter of docs/contributor/add-an-adapter.md, over TCP. A proxy between its two sides has the wire."""

import socket
import threading

import page_code
from fedcipher.federation.messages import Message
from fedcipher.federation.server.run import ServerRun
from fedcipher.federation.server.setup import RunSetup

from conformance import CLIENTS, Adapter

page = page_code.module(page_code.ADAPTER, "socket_adapter")


class Sockets(Adapter):
    name = "sockets"

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._clients = {}
        for client in range(CLIENTS):
            self.restart(client)

    def restart(self, client):
        if client in self._clients:
            self._clients[client].close()
        port = self._listener.getsockname()[1]
        settings = {"fedcipher-key": str(self.cohort.key(client))}

        def app(purpose, arrays):
            names = self._names
            moved, metrics = self.app(client, purpose, dict(zip(names, arrays, strict=True)))
            return list(moved.values()), metrics

        threading.Thread(target=page.client, args=(port, client, settings, app), daemon=True).start()
        self._clients[client] = self._listener.accept()[0]
        page._receive(self._clients[client])

    def tell(self, client, message):
        return self.tell_bytes(client, message.to_bytes())

    def tell_bytes(self, client, raw):
        page._send(self._clients[client], 7, raw)
        return Message.parse(page._receive(self._clients[client])[1])

    def serve(self, model, rounds, **options):
        self._names = list(model)
        run = self.run = ServerRun(RunSetup(self.cohort.folder, **options))
        run.begin(self._names, list(model.values()), rounds)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            for client in range(CLIENTS):
                connection = socket.create_connection(listener.getsockname())
                page._send(connection, client, b"")
                threading.Thread(target=self._relay, args=(client, connection), daemon=True).start()
            link = page.SocketLink(listener, CLIENTS)
        try:
            for index in range(run.done + 1, rounds + 1):
                run.run_round(index, link, link.nodes(), evaluate=True)
        finally:
            run.close()
            link.close()
        run.check_lost()
        return run

    def _relay(self, client, connection):
        with connection:
            while True:
                try:
                    number, raw = page._receive(connection)
                    reply = self.carry(client, Message.parse(raw))
                    if reply is not None:
                        page._send(connection, number, reply.to_bytes())
                except (EOFError, OSError):
                    return

    def close(self):
        for connection in self._clients.values():
            connection.close()
        self._listener.close()
