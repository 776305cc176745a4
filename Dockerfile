# The server as a container: no shell is needed, no root, nothing written outside /data.
# With `--build-arg EXTRAS=postgres,redis,graders,ray` it is a node of a Ray cluster.
#   docker build -t batuta . && docker run -p 127.0.0.1:8765:8765 -v batuta:/data --env-file .env batuta
FROM python:3.12-slim-trixie AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY locks/server.txt ./locks/server.txt
RUN python -m venv /opt/batuta && /opt/batuta/bin/pip install --no-cache-dir --no-deps --require-hashes -r locks/server.txt
COPY src ./src
RUN /opt/batuta/bin/pip install --no-cache-dir --no-deps .
ARG EXTRAS=
RUN test -z "$EXTRAS" || /opt/batuta/bin/pip install --no-cache-dir ".[$EXTRAS]"

FROM python:3.12-slim-trixie
RUN useradd --uid 10001 --home-dir /data --shell /usr/sbin/nologin batuta \
    && install --directory --owner batuta --group batuta /data \
    && ln -s /opt/batuta/bin/batuta /opt/batuta/bin/ray /usr/local/bin/
COPY --from=build /opt/batuta /opt/batuta
ENV PATH=/opt/batuta/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 BATUTA_HOME=/data
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8765
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8765/readyz', timeout=2)"]
ENTRYPOINT ["batuta", "serve", "--host", "0.0.0.0", "--port", "8765", "--log", "json"]
