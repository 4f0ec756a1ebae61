# Cutaway's gateway with TorchServe. docs/deployment.md says how to build and run it.
#
# BASE is any glibc system with Python 3.10 or newer and its venv module. EXTRAS are those of Cutaway's (pyproject.toml)
# that have a file in deploy/requirements.
ARG BASE=python:3.11-slim-bookworm

# All that is not ours, Java in a wheel included. A change of our code leaves this stage, and torch in it, as it is.
FROM ${BASE} AS dependencies
ARG EXTRAS=server
# The SHA-256 of another build of torch, which comes instead of PyPI's and its CUDA packages.
ARG TORCH_SHA256
# Where pip looks. Only RUN sees these, and the image does not keep them.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_CERT
ARG PIP_DEFAULT_TIMEOUT
RUN python3 -m venv /opt/cutaway
WORKDIR /build
COPY deploy/requirements ./
# Wheels only: to build from source, pip fetches tools without comparing hashes, and runs them. dumb-init, in
# server.txt, is the first process: the kernel keeps from that one signals it has not asked for, which Python takes seconds to, and
# leaves it what TorchServe's workers are when TorchServe was killed.
RUN if [ "${TORCH_SHA256}" ]; then \
        torch=$(grep -o '^torch==[^ ]*' torch.txt) && echo "${torch} --hash=sha256:${TORCH_SHA256}" >torch.txt; \
    fi \
    && /opt/cutaway/bin/pip install --no-cache-dir --require-hashes --only-binary :all: \
        $(echo "${EXTRAS}" | sed 's/[^,]*/--requirement &.txt/g; s/,/ /g')

FROM ${BASE} AS wheel
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_CERT
ARG PIP_DEFAULT_TIMEOUT
RUN python3 -m venv /build/tools
WORKDIR /build
COPY deploy/requirements requirements
RUN tools/bin/pip install --no-cache-dir --require-hashes --only-binary :all: --requirement requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY handlers handlers
COPY service service
RUN tools/bin/pip wheel --no-cache-dir --no-index --no-deps --no-build-isolation --wheel-dir /dist .

FROM ${BASE}
LABEL org.opencontainers.image.title="Cutaway" \
      org.opencontainers.image.description="PyTorch models served with their insides visible, and with proof" \
      org.opencontainers.image.licenses="Apache-2.0"
# A number, so that Kubernetes can see that it is not root; an entry of its own, because torch asks for its name. OpenShift
# runs the image as a user with another number and no name, of group 0.
RUN groupadd --gid 10001 cutaway \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin cutaway \
    && mkdir /models \
    && install --directory --owner 10001 --group 0 --mode 0770 /var/log/cutaway
COPY --from=dependencies /opt/cutaway /opt/cutaway
COPY --from=wheel /dist /tmp/dist
RUN /opt/cutaway/bin/pip install --no-cache-dir --no-index --no-deps /tmp/dist/*.whl && rm -r /tmp/dist
COPY --chmod=0755 deploy/health.py /opt/cutaway/bin/cutaway-health

# Inside, every address is meant: which of them the world reaches is decided by who runs the image.
ENV PATH=/opt/cutaway/bin:${PATH} \
    HOME=/tmp \
    LOGNAME=cutaway \
    PYTHONUNBUFFERED=1 \
    GRPC_VERBOSITY=NONE \
    CUTAWAY_ADDRESS=0.0.0.0:50051 \
    CUTAWAY_LOG_DIR=/var/log/cutaway
USER 10001:10001
WORKDIR /tmp
# Besides /tmp, which may be in memory, these are all that the image asks of its surroundings; it only writes the log.
VOLUME ["/models", "/var/log/cutaway"]
EXPOSE 50051
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=180s --retries=3 CMD ["cutaway-health"]
ENTRYPOINT ["dumb-init", "--single-child", "--", "cutaway"]
CMD ["serve", "--model-store", "/models"]
